-- Remembered events: which delivery came from which block that a reorg may still replace, so that Herald finds the
-- deliveries of replaced blocks. The new columns of chain_cursors are about the end of a chain.
--
--   canonical  the event is on the chain as far as the chain was read
--   orphaned   its block was replaced, and the new blocks are not yet read up to the head
--   gone       the new blocks do not have it either, and its delivery had ended or its agent was called; its key may
--              be used by another event
--
-- Rows of settled blocks are deleted, except those with the state gone. Additive: workers of the previous version read
-- none of this. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s';

CREATE TABLE IF NOT EXISTS herald.chain_events (
    chain_id     bigint NOT NULL,
    follower     text   NOT NULL, -- as in chain_cursors
    delivery_id  uuid   NOT NULL,
    block_number bigint NOT NULL,
    state        text   NOT NULL DEFAULT 'canonical' CHECK (state IN ('canonical', 'orphaned', 'gone')),
    PRIMARY KEY (chain_id, follower, delivery_id)
);
CREATE INDEX IF NOT EXISTS chain_events_block ON herald.chain_events (chain_id, follower, block_number);
CREATE INDEX IF NOT EXISTS chain_events_orphaned ON herald.chain_events (chain_id, follower) WHERE state = 'orphaned';

ALTER TABLE herald.chain_cursors
    ADD COLUMN IF NOT EXISTS finalized_block bigint NOT NULL DEFAULT 0, -- 0: unknown
    ADD COLUMN IF NOT EXISTS settled_block   bigint NOT NULL DEFAULT 0, -- no reorg is expected to replace it
    ADD COLUMN IF NOT EXISTS reorgs          bigint NOT NULL DEFAULT 0; -- how often blocks were read again

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.chain_cursors
    DROP COLUMN IF EXISTS finalized_block,
    DROP COLUMN IF EXISTS settled_block,
    DROP COLUMN IF EXISTS reorgs;
DROP TABLE IF EXISTS herald.chain_events;
SET lock_timeout = 0;
