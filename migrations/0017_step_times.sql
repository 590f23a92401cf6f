-- How long each step of an attempt took, for the page of a delivery: check, resolve, fetch, compose, call, as far as the attempt came.
--
-- A column without default: no row is written anew. Partitions get it with their table. It can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits
ALTER TABLE herald.attempts ADD COLUMN IF NOT EXISTS step_us integer[]; -- µs, in order; null: recorded by a version before
SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.attempts DROP COLUMN IF EXISTS step_us;
SET lock_timeout = 0;
