-- How far a follower knows that its nodes left out no logs (chain.Checks), and since when it reads nothing, with the reason.
--
-- Additive: a worker of the version before writes neither. Columns without a default: no row is written anew. It can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits
ALTER TABLE herald.chain_cursors
    ADD COLUMN IF NOT EXISTS checks        jsonb,       -- null: all blocks are checked before they are accepted, or none
    ADD COLUMN IF NOT EXISTS stalled_since timestamptz, -- null: blocks are read
    ADD COLUMN IF NOT EXISTS stalled_why   text;
SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.chain_cursors
    DROP COLUMN IF EXISTS checks,
    DROP COLUMN IF EXISTS stalled_since,
    DROP COLUMN IF EXISTS stalled_why;
SET lock_timeout = 0;
