-- The cursor of whoever reads a chain remembers where it began, so that a reorg deeper than its blocks is read again from there; where it
-- ends, if it does; the node's newest block when it moved last, from which the lag is told; and how often it moved, by which two that
-- move it at the same time are told apart: after a reorg next_block may be what it was.
--
-- Additive: a worker of the version before does not read this table. Columns with a constant default are entries in the catalogue. It can
-- be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s';

ALTER TABLE herald.chain_cursors
    ADD COLUMN IF NOT EXISTS start_block bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS end_block   bigint,
    ADD COLUMN IF NOT EXISTS head_block  bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS moves       bigint NOT NULL DEFAULT 0;

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.chain_cursors
    DROP COLUMN IF EXISTS start_block,
    DROP COLUMN IF EXISTS end_block,
    DROP COLUMN IF EXISTS head_block,
    DROP COLUMN IF EXISTS moves;
SET lock_timeout = 0;
