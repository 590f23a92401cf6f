-- The traceparent (W3C, version 00) that came with a job: its delivery's spans go on with that trace. Null: none came, and the trace follows
-- from the delivery's id.
--
-- Additive: a worker of the version before does not read it. A nullable column is an entry in the catalogue: no row is written anew. It can
-- be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits
ALTER TABLE herald.deliveries ADD COLUMN IF NOT EXISTS traceparent text;
SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS traceparent;
SET lock_timeout = 0;
