-- The fields of a feedback file that contradict its event, by name (docs/design/content.md). The agent gets the values
-- of the event; the column is for operators.
--
-- Additive: workers of the previous version continue to work on the same rows and do not write the column, so a row may
-- show the result of an earlier attempt until this version has fetched the file again. A nullable column without a
-- default only changes the catalogue: Postgres rewrites no row and holds its lock for a moment. The column is in no
-- index, so that writing it updates no index (see 0003). The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it

ALTER TABLE herald.deliveries
    ADD COLUMN IF NOT EXISTS file_disagrees text[]; -- null: no contradiction, or the file was not compared

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS file_disagrees;
SET lock_timeout = 0;
