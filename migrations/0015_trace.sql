-- The traceparent (W3C, version 00) that came with a job: the delivery's spans continue that trace. Null: none came,
-- and the trace id is derived from the delivery's id.
--
-- Additive: workers of the previous version do not read it. A nullable column only changes the catalogue: Postgres
-- rewrites no row. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it
ALTER TABLE herald.deliveries ADD COLUMN IF NOT EXISTS traceparent text;
SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS traceparent;
SET lock_timeout = 0;
