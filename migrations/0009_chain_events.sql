-- Which delivery came from which block that may still be replaced, so that a reorg finds what it takes back; and what is known of a
-- chain's end.
--
--   canonical  the event is on the chain, as far as it was read
--   orphaned   its block was replaced, and the chain that replaced it is not read to its head yet
--   gone       it was not on that either, and the delivery ended as it was or was called; its key may go to another event
--
-- Rows of blocks that are settled are deleted; gone ones stay. Additive: a worker of the version before reads none of this. It can be run
-- again.

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
    ADD COLUMN IF NOT EXISTS finalized_block bigint NOT NULL DEFAULT 0, -- 0: not known
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
