-- The durations of an attempt's steps, for the page of a delivery: check, resolve, fetch, compose and call, up to the
-- last step that began.
--
-- A column without a default: Postgres rewrites no row. The partitions inherit it. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it
ALTER TABLE herald.attempts ADD COLUMN IF NOT EXISTS step_us integer[]; -- µs, in order; null: recorded by an earlier version
SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.attempts DROP COLUMN IF EXISTS step_us;
SET lock_timeout = 0;
