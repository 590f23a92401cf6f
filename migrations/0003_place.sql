-- The column place: the state of a delivery as far as a claim does not change it, so that a claim writes no index
-- (docs/design/ledger.md).
--
-- When an update changes a column of any index of the table, conditions included, Postgres writes all its indexes.
-- Indexes on status and lease_until made claim, dispatch and record do so. They are now on place, in which dispatched
-- and running deliveries have the same value:
--
--   line       queued, in Postgres only (the agent's backlog)
--   out        dispatched: its task is in Redis, or a worker has claimed it
--   otherwise  the status
--
-- Adding the column rewrites the table once, and deliveries stop during it (2.2 s for 200,000 rows of 1 KB on two
-- cores); to workers, Postgres is unavailable for that time. Workers of the previous version continue to work
-- correctly, because Postgres computes place from their writes. But they are slow: the indexes of their statements no
-- longer exist, and each statement reads the whole table (0.1 s for 300,000 rows). If the table is larger, stop the old
-- workers first; deliveries wait and none is lost. Each statement can be run again, so an interrupted migration
-- continues where it stopped.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it

-- Leaves room in the page for the next version of a row; otherwise an update must write the indexes. Almost every first
-- claim finds room; while a long backlog is processed, three of four do.
ALTER TABLE herald.deliveries SET (fillfactor = 60);
ALTER TABLE herald.deliveries ADD COLUMN IF NOT EXISTS place text GENERATED ALWAYS AS (
    CASE WHEN status = 'queued' AND handed_at IS NULL THEN 'line'
         WHEN status IN ('queued', 'running')         THEN 'out'
         ELSE status END) STORED;

SET lock_timeout = 0; -- the statements below block no worker while they wait

-- An agent's next deliveries to dispatch, oldest first. seq + 0 keeps Postgres from using deliveries_seq to find them.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_line; -- an interrupted CREATE leaves an invalid index
CREATE INDEX CONCURRENTLY deliveries_line ON herald.deliveries (chain_id, identity_registry, agent_id, (seq + 0)) WHERE place = 'line';
-- An agent's dispatched deliveries, of which it may have 8, and deliveries whose leases may have expired.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_out;
CREATE INDEX CONCURRENTLY deliveries_out ON herald.deliveries (chain_id, identity_registry, agent_id) WHERE place = 'out';
-- Tasks that Redis may have lost.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_task;
CREATE INDEX CONCURRENTLY deliveries_task ON herald.deliveries (id) WHERE handed_at IS NOT NULL;
-- Waiting deliveries without a task in Redis.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_wait;
CREATE INDEX CONCURRENTLY deliveries_wait ON herald.deliveries (next_attempt_at) WHERE place = 'waiting' AND handed_at IS NULL;
-- An agent's waiting and held deliveries: to count them, and to release the held ones.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_aside;
CREATE INDEX CONCURRENTLY deliveries_aside ON herald.deliveries (chain_id, identity_registry, agent_id, place, reason)
    WHERE place IN ('waiting', 'held');
-- Held deliveries, to release those of a chain that is configured again.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_hold;
CREATE INDEX CONCURRENTLY deliveries_hold ON herald.deliveries (reason, chain_id, seq) WHERE place = 'held';
-- The states that operators search.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_place;
CREATE INDEX CONCURRENTLY deliveries_place ON herald.deliveries (place, seq DESC)
    WHERE place IN ('waiting', 'held', 'skipped', 'rejected', 'dead', 'cancelled');

-- An agent's whole history, newest first, for lists. agent_id is text here so that Postgres does not use this index for
-- the backlog.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_history;
CREATE INDEX CONCURRENTLY deliveries_history ON herald.deliveries (chain_id, (agent_id::text), seq DESC);

DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_agent;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_backlog;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_handed;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_handed_id;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_due;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_lease;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_held;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_parked;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_told;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_backlog;
CREATE INDEX CONCURRENTLY deliveries_backlog ON herald.deliveries (chain_id, identity_registry, agent_id, seq)
    WHERE status = 'queued' AND handed_at IS NULL;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_handed;
CREATE INDEX CONCURRENTLY deliveries_handed ON herald.deliveries (chain_id, identity_registry, agent_id)
    WHERE status IN ('queued', 'running') AND handed_at IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_handed_id;
CREATE INDEX CONCURRENTLY deliveries_handed_id ON herald.deliveries (id)
    WHERE status IN ('queued', 'waiting') AND handed_at IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_due;
CREATE INDEX CONCURRENTLY deliveries_due ON herald.deliveries (next_attempt_at) WHERE status = 'waiting' AND handed_at IS NULL;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_lease;
CREATE INDEX CONCURRENTLY deliveries_lease ON herald.deliveries (lease_until) WHERE status = 'running';
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_held;
CREATE INDEX CONCURRENTLY deliveries_held ON herald.deliveries (reason, chain_id, seq) WHERE status = 'held';
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_parked;
CREATE INDEX CONCURRENTLY deliveries_parked ON herald.deliveries (chain_id, identity_registry, agent_id, status, reason)
    WHERE status IN ('waiting', 'held');
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_told;
CREATE INDEX CONCURRENTLY deliveries_told ON herald.deliveries (status, seq DESC)
    WHERE status IN ('waiting', 'held', 'skipped', 'rejected', 'dead', 'cancelled');
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_agent;
CREATE INDEX CONCURRENTLY deliveries_agent ON herald.deliveries (chain_id, agent_id, seq DESC);
SET lock_timeout = '10s';
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS place; -- also drops its indexes
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_task;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_history;
ALTER TABLE herald.deliveries RESET (fillfactor);
SET lock_timeout = 0;
