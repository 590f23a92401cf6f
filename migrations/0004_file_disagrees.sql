-- What a feedback's file says otherwise than its event, by the names of its fields (DESIGN §7). The agent is told what the event says;
-- this is for operators.
--
-- Additive: a worker of the version before goes on working beside it, on the same rows, and leaves the column
-- alone, so a row may show what an attempt before said until this version has fetched the file again. A column that
-- may be null and has no default is an entry in the catalogue: no row is written anew, and the lock is held for a moment. It is in no
-- index, so that writing it costs none (0003). It can be run again: a migration that was cut off goes on where it was.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits

ALTER TABLE herald.deliveries
    ADD COLUMN IF NOT EXISTS file_disagrees text[]; -- null: it contradicts nothing, or it was not compared

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.deliveries DROP COLUMN IF EXISTS file_disagrees;
SET lock_timeout = 0;
