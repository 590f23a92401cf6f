-- Jobs of the same key as a delivery which waits to be called, with another content or position on the chain. They stand in line: when the
-- chain does not show the event as the delivery's job says, the next one takes its place (DESIGN §3, "Key"). Their number is not bounded: each
-- costs what a delivery of its own costs, and where only so many found room, whoever fills it first would keep the right one out.
--
-- Additive: a worker of the version before goes on working beside it, on the same rows. It does not know the line, so what it rejects
-- (event_not_found) stays rejected until the event is enqueued again. A column with a constant default is an entry in the catalogue: no
-- row is written anew. It can be run again: a migration that was cut off goes on where it was.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits

ALTER TABLE herald.deliveries
    ADD COLUMN IF NOT EXISTS candidate_rank bigint NOT NULL DEFAULT 0; -- of the job that is in place; 0: the first comer's

CREATE TABLE IF NOT EXISTS herald.candidates (
    delivery_id       uuid          NOT NULL,
    rank              bigint        NOT NULL,               -- order of arrival
    transaction_hash  text          NOT NULL,               -- empty: the job names none
    event             bytea         NOT NULL,               -- sum of what the job says that the event is, and where
    action            bytea         NOT NULL,               -- sum of how it says to deliver
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    order_key         text          NOT NULL,
    order_seq         numeric(20,0) NOT NULL,
    job               jsonb         NOT NULL,
    secret_headers    bytea,                                -- as in deliveries
    due               timestamptz   NOT NULL DEFAULT now(), -- when it is worth looking at (again)
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
