-- Deliveries that a backfill accepted: they are dispatched to the lane bulk, whatever becomes of them, and stand in their agents' lines
-- behind what is accepted otherwise, so that an event of today does not wait for those of years ago.
--
-- Additive: a worker of the version before goes on rightly beside it, on the same rows; what it dispatches goes by age and to the lanes that
-- it knows. A column with a constant default is an entry in the catalogue: no row is written anew. Of the line's index only what follows the
-- agent is another one, so that the old statements find their lines by it and sort these themselves. It can be run again: a migration that
-- was cut off goes on where it was.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits

ALTER TABLE herald.deliveries ADD COLUMN IF NOT EXISTS bulk boolean NOT NULL DEFAULT false;

SET lock_timeout = 0; -- what follows blocks nobody while it waits

-- The agent's next ones to dispatch: a backfill's last, then oldest first. seq + 0, or a plan could walk deliveries_seq to find them.
DROP INDEX CONCURRENTLY IF EXISTS herald.deliveries_next; -- one that was cut off is there and invalid
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
