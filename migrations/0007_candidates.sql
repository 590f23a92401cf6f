-- Candidates: other jobs of an open delivery's key, with another content or another position on the chain. When the
-- chain does not have the event as the delivery's job says, a candidate replaces the job (docs/design/chain.md). The
-- number of candidates is not bounded: each costs as much as a delivery, and a bound would let a sender of wrong jobs
-- keep the right one out.
--
-- Additive: workers of the previous version continue to work on the same rows. They do not know candidates, so a
-- delivery that they reject (event_not_found) stays rejected until the event is enqueued again. A column with a
-- constant default only changes the catalogue: Postgres rewrites no row. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it

ALTER TABLE herald.deliveries
    ADD COLUMN IF NOT EXISTS candidate_rank bigint NOT NULL DEFAULT 0; -- rank of the delivery's job; 0: the first job

CREATE TABLE IF NOT EXISTS herald.candidates (
    delivery_id       uuid          NOT NULL,
    rank              bigint        NOT NULL,               -- order of arrival
    transaction_hash  text          NOT NULL,               -- empty: the job names none
    event             bytea         NOT NULL,               -- hash of the event's content and position in the job
    action            bytea         NOT NULL,               -- hash of the job's action
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    order_key         text          NOT NULL,
    order_seq         numeric(20,0) NOT NULL,
    job               jsonb         NOT NULL,
    secret_headers    bytea,                                -- as in deliveries
    due               timestamptz   NOT NULL DEFAULT now(), -- when the chain may be asked about it (again)
    created_at        timestamptz   NOT NULL DEFAULT now(),
    PRIMARY KEY (delivery_id, rank),
    UNIQUE (delivery_id, event)
);
CREATE INDEX IF NOT EXISTS candidates_due ON herald.candidates (delivery_id, (transaction_hash = ''), due, rank);
CREATE INDEX IF NOT EXISTS candidates_action ON herald.candidates (delivery_id, action);
CREATE INDEX IF NOT EXISTS candidates_transaction ON herald.candidates (delivery_id, transaction_hash, rank);

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
DROP TABLE IF EXISTS herald.candidates;
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS candidate_rank;
SET lock_timeout = 0;
