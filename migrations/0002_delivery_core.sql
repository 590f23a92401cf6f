-- What the guarantees of DESIGN §5 need beside 0001: budgets and replays, failed fetches, one raise of the epoch per failure,
-- retention, the audit of what operators did to many deliveries.
--
-- Additive: a worker of the version before goes on working beside it, on the same rows. No transaction: each statement locks
-- one table, and not for long; two of them at once could lock each other out with a worker that holds agents and wants
-- deliveries, or the other way round. Each can be run again: a migration that was cut off goes on where it was.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits

ALTER TABLE herald.agents
    ADD COLUMN IF NOT EXISTS raised_epoch bigint; -- the epoch that a failure made; null: the agent has answered since

ALTER TABLE herald.deliveries
    ADD COLUMN IF NOT EXISTS budget_base    integer NOT NULL DEFAULT 0, -- attempts made before the present budget
    ADD COLUMN IF NOT EXISTS fetch_failures integer NOT NULL DEFAULT 0, -- of its feedback file, in the present budget
    ADD COLUMN IF NOT EXISTS replays        integer NOT NULL DEFAULT 0; -- how often an operator had it delivered anew

SET lock_timeout = 0; -- what follows blocks nobody while it waits

-- An agent's deliveries that are neither in line nor handed out: to count them, and to release those that were held.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_parked; -- one that was cut off is there and invalid
CREATE INDEX CONCURRENTLY deliveries_parked ON herald.deliveries (chain_id, identity_registry, agent_id, status, reason)
    WHERE status IN ('waiting', 'held');
-- What retention has not been at.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_kept;
CREATE INDEX CONCURRENTLY deliveries_kept ON herald.deliveries (finished_at)
    WHERE finished_at IS NOT NULL AND (job IS NOT NULL OR result IS NOT NULL OR secret_headers IS NOT NULL OR error IS NOT NULL);
-- The default partition is not dropped: its old rows are deleted.
DROP INDEX CONCURRENTLY IF EXISTS herald.attempts_default_started;
CREATE INDEX CONCURRENTLY attempts_default_started ON herald.attempts_default (started_at);

-- Every delivery goes through queued and running, and nearly all end delivered: an index that they enter costs each of them three
-- writes. Lists of those states walk deliveries_seq; this is for the states that operators look for.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_status;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_told;
CREATE INDEX CONCURRENTLY deliveries_told ON herald.deliveries (status, seq DESC)
    WHERE status IN ('waiting', 'held', 'skipped', 'rejected', 'dead', 'cancelled');
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_order; -- of no use before there is an order, which needs open ones only

-- What an operator did to many deliveries at once.
CREATE TABLE IF NOT EXISTS herald.audit (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT now(),
    actor       text        NOT NULL,
    action      text        NOT NULL,
    filter      jsonb,                              -- which deliveries were meant
    matched     bigint      NOT NULL DEFAULT 0,     -- how many these were when it began
    moved       bigint      NOT NULL DEFAULT 0,     -- how many were changed
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
