-- Up to which block a follower knows that its nodes left out no logs (chain.Checks), and since when it reads no blocks,
-- with the reason.
--
-- Additive: workers of the previous version write neither. Columns without a default: Postgres rewrites no row. The
-- migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it
ALTER TABLE herald.chain_cursors
    ADD COLUMN IF NOT EXISTS checks        jsonb,       -- null: blocks are checked before they are accepted, or never
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
