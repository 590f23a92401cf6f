-- Where a delivery stands, as a column that a claim does not change, so that a claim writes no index (DESIGN §12).
--
-- Postgres writes every index of a table anew when an update changes a column of any of them, conditions included. Indexes on
-- status and lease_until made claim, hand-out and record do so. Now they are on place, which is queued and running in one:
--
--   line       queued, and only here            out       handed out: its task is in Redis, or a worker has it
--   otherwise  the status
--
-- Adding it writes the table anew, once, and nobody works on deliveries meanwhile (2.2 s for 200,000 rows of 1 KB on two cores);
-- workers take that for a Postgres that is away. A worker of the version before goes on rightly beside it, since Postgres computes place
-- from what it writes, but slowly: the indexes of its statements are gone, and each reads the whole table (0.1 s for 300,000 rows). With
-- more than that, stop the old workers before; nothing is lost, deliveries wait. Each statement can be run again: a migration that was cut off goes on where it was.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits

-- Room for the next version of a row beside it, or it could not do without the indexes. Nearly every first claim finds it; when a long
-- line is worked off, three of four.
ALTER TABLE herald.deliveries SET (fillfactor = 60);
ALTER TABLE herald.deliveries ADD COLUMN IF NOT EXISTS place text GENERATED ALWAYS AS (
    CASE WHEN status = 'queued' AND handed_at IS NULL THEN 'line'
         WHEN status IN ('queued', 'running')         THEN 'out'
         ELSE status END) STORED;

SET lock_timeout = 0; -- what follows blocks nobody while it waits

-- The agent's next ones to hand out, oldest first. seq + 0, or a plan could walk deliveries_seq to find them.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_line; -- one that was cut off is there and invalid
CREATE INDEX CONCURRENTLY deliveries_line ON herald.deliveries (chain_id, identity_registry, agent_id, (seq + 0)) WHERE place = 'line';
-- What counts against the agent's hand-out of 8, and whose workers may be gone.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_out;
CREATE INDEX CONCURRENTLY deliveries_out ON herald.deliveries (chain_id, identity_registry, agent_id) WHERE place = 'out';
-- Tasks that Redis may have lost.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_task;
CREATE INDEX CONCURRENTLY deliveries_task ON herald.deliveries (id) WHERE handed_at IS NOT NULL;
-- Waits that stayed here.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_wait;
CREATE INDEX CONCURRENTLY deliveries_wait ON herald.deliveries (next_attempt_at) WHERE place = 'waiting' AND handed_at IS NULL;
-- An agent's deliveries that wait or are held: to count them, and to release those that were held.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_aside;
CREATE INDEX CONCURRENTLY deliveries_aside ON herald.deliveries (chain_id, identity_registry, agent_id, place, reason)
    WHERE place IN ('waiting', 'held');
-- What a chain's return releases.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_hold;
CREATE INDEX CONCURRENTLY deliveries_hold ON herald.deliveries (reason, chain_id, seq) WHERE place = 'held';
-- The states that operators look for.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_place;
CREATE INDEX CONCURRENTLY deliveries_place ON herald.deliveries (place, seq DESC)
    WHERE place IN ('waiting', 'held', 'skipped', 'rejected', 'dead', 'cancelled');

-- Lists of an agent's deliveries. As text, or this one would pass for the line's: an agent's whole history, newest first.
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
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS place; -- and the indexes on it
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_task;
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_history;
ALTER TABLE herald.deliveries RESET (fillfactor);
SET lock_timeout = 0;
