-- Deliveries of a backfill: their tasks always go to the lane bulk, and in their agents' backlogs they come after the
-- other deliveries, so that a new event does not wait for events of past years.
--
-- Additive: workers of the previous version continue to work correctly on the same rows; they dispatch by age and to
-- the lanes that they know. A column with a constant default only changes the catalogue: Postgres rewrites no row. The
-- new index of the backlog begins with the same columns as the old one, so the old statements find their backlogs by it
-- and sort the rows themselves. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it

ALTER TABLE herald.deliveries ADD COLUMN IF NOT EXISTS bulk boolean NOT NULL DEFAULT false;

SET lock_timeout = 0; -- the statements below block no worker while they wait

-- An agent's next deliveries to dispatch: those of a backfill last, then by age. seq + 0 keeps Postgres from using
-- deliveries_seq.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_next; -- an interrupted CREATE leaves an invalid index
CREATE INDEX CONCURRENTLY deliveries_next ON herald.deliveries (chain_id, identity_registry, agent_id, bulk, (seq + 0))
    WHERE place = 'line';
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_line;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_line;
CREATE INDEX CONCURRENTLY deliveries_line ON herald.deliveries (chain_id, identity_registry, agent_id, (seq + 0)) WHERE place = 'line';
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_next;
SET lock_timeout = '10s';
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS bulk;
SET lock_timeout = 0;
