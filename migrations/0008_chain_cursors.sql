-- Columns of a cursor: the block where it began, so that after a reorg deeper than the stored blocks the
-- chain is read again from there; its last block, if it ends; the node's newest block at the last move, for the lag;
-- and the number of moves. The number of moves detects concurrent moves, because after a reorg next_block may have the
-- same value again.
--
-- Additive: workers of the previous version do not read this table. Columns with a constant default only change the
-- catalogue. The migration can be run again.

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
