-- Hints: where jobs say that the event of a delivery's key is (docs/design/chain.md). The check reads the event there.
--
-- The first job of a key is in deliveries. When a second job differs, both become rows of hints.
--
-- The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it

ALTER TABLE herald.deliveries
    ADD COLUMN IF NOT EXISTS verified  boolean  NOT NULL DEFAULT false, -- accepted while workers verified the chain's events
    ADD COLUMN IF NOT EXISTS bound     boolean  NOT NULL DEFAULT false, -- job was read from the chain; true before the agent is called
    ADD COLUMN IF NOT EXISTS source    text     NOT NULL DEFAULT '',    -- sender of the job's action
    ADD COLUMN IF NOT EXISTS trust     smallint NOT NULL DEFAULT 0,     -- of that sender (store.Trust)
    ADD COLUMN IF NOT EXISTS hints     integer  NOT NULL DEFAULT 0,     -- grows with each hint and each reading of a follower
    ADD COLUMN IF NOT EXISTS corrected text[];                          -- fields of the jobs that the event contradicts

-- At most 8 hints for each delivery, 2 for each API token and 2 for Redis.
CREATE TABLE IF NOT EXISTS herald.hints (
    delivery_id    uuid        NOT NULL,
    rank           integer     NOT NULL,               -- order of arrival; 0: the delivery's first job
    job            jsonb       NOT NULL,
    secret_headers bytea,                              -- as in deliveries
    source         text        NOT NULL,
    trust          smallint    NOT NULL,
    refuted        boolean     NOT NULL DEFAULT false, -- the chain does not have the event there
    review_at        timestamptz,                        -- when a worker reads the event of the ended delivery again; null: never
    created_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (delivery_id, rank)
);
CREATE INDEX IF NOT EXISTS hints_review ON herald.hints (review_at) WHERE review_at IS NOT NULL;

-- The chains whose events a worker verifies. Each worker updates seen_at every few seconds.
CREATE TABLE IF NOT EXISTS herald.verified_chains (
    chain_id bigint      PRIMARY KEY,
    seen_at  timestamptz NOT NULL DEFAULT now()
);

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
DROP TABLE IF EXISTS herald.hints, herald.verified_chains;
ALTER TABLE herald.deliveries
    DROP COLUMN IF EXISTS verified,
    DROP COLUMN IF EXISTS bound,
    DROP COLUMN IF EXISTS source,
    DROP COLUMN IF EXISTS trust,
    DROP COLUMN IF EXISTS hints,
    DROP COLUMN IF EXISTS corrected;
SET lock_timeout = 0;
