-- Columns and indexes for budgets, replays, failed fetches, one raise of the epoch per failure, and retention, and the
-- audit table of operators' bulk actions.
--
-- Additive: workers of the previous version continue to work on the same rows. No transaction: each statement locks one
-- table for a short time. Two locks at once could deadlock with a worker that holds agents and waits for deliveries, or
-- the reverse. Each statement can be run again, so an interrupted migration continues where it stopped.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it

ALTER TABLE herald.agents
    ADD COLUMN IF NOT EXISTS raised_epoch bigint; -- the epoch that a failure raised; null: the agent has succeeded since

ALTER TABLE herald.deliveries
    ADD COLUMN IF NOT EXISTS budget_base    integer NOT NULL DEFAULT 0, -- attempts made before the present budget
    ADD COLUMN IF NOT EXISTS fetch_failures integer NOT NULL DEFAULT 0, -- failed fetches of the feedback file in the present budget
    ADD COLUMN IF NOT EXISTS replays        integer NOT NULL DEFAULT 0; -- how often an operator replayed it

SET lock_timeout = 0; -- the statements below block no worker while they wait

-- An agent's waiting and held deliveries: to count them, and to release the held ones.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_parked; -- an interrupted CREATE leaves an invalid index
CREATE INDEX CONCURRENTLY deliveries_parked ON herald.deliveries (chain_id, identity_registry, agent_id, status, reason)
    WHERE status IN ('waiting', 'held');
-- Ended deliveries that retention has not yet processed.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_kept;
CREATE INDEX CONCURRENTLY deliveries_kept ON herald.deliveries (finished_at)
    WHERE finished_at IS NOT NULL AND (job IS NOT NULL OR result IS NOT NULL OR secret_headers IS NOT NULL OR error IS NOT NULL);
-- The default partition is not dropped; retention deletes its old rows.
DROP INDEX CONCURRENTLY IF EXISTS herald.attempts_default_started;
CREATE INDEX CONCURRENTLY attempts_default_started ON herald.attempts_default (started_at);

-- Every delivery passes through queued and running, and almost all end as delivered: an index that contains these
-- states costs each delivery three writes. Lists of those states use deliveries_seq; this index is for the states that
-- operators search.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_status;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_told;
CREATE INDEX CONCURRENTLY deliveries_told ON herald.deliveries (status, seq DESC)
    WHERE status IN ('waiting', 'held', 'skipped', 'rejected', 'dead', 'cancelled');
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_order; -- unused so far: the order needs open deliveries only

-- Operators' actions on many deliveries at once.
CREATE TABLE IF NOT EXISTS herald.audit (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT now(),
    actor       text        NOT NULL,
    action      text        NOT NULL,
    filter      jsonb,                              -- selects the deliveries
    matched     bigint      NOT NULL DEFAULT 0,     -- number of selected deliveries when the action began
    moved       bigint      NOT NULL DEFAULT 0,     -- number of changed deliveries
    state       text        NOT NULL DEFAULT 'running', -- running done cancelled failed
    finished_at timestamptz,
    note        text
);

-- +goose Down
DROP TABLE IF EXISTS herald.audit;
CREATE INDEX CONCURRENTLY IF NOT EXISTS deliveries_order ON herald.deliveries (order_key, order_seq);
CREATE INDEX CONCURRENTLY IF NOT EXISTS deliveries_status ON herald.deliveries (status, seq DESC);
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_told;
DROP INDEX CONCURRENTLY IF EXISTS herald.attempts_default_started;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_kept;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_parked;
SET lock_timeout = '10s';
ALTER TABLE herald.deliveries
    DROP COLUMN IF EXISTS budget_base,
    DROP COLUMN IF EXISTS fetch_failures,
    DROP COLUMN IF EXISTS replays;
ALTER TABLE herald.agents DROP COLUMN IF EXISTS raised_epoch;
SET lock_timeout = 0;
