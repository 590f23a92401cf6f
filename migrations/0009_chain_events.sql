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
    delivery_id  uuid   PRIMARY KEY,
    chain_id     bigint NOT NULL,
    contract     text   NOT NULL, -- the address that emitted the event, in lower case
    block_number bigint NOT NULL,
    state        text   NOT NULL DEFAULT 'canonical' CHECK (state IN ('canonical', 'orphaned', 'gone'))
);
CREATE INDEX IF NOT EXISTS chain_events_block ON herald.chain_events (chain_id, contract, block_number);
CREATE INDEX IF NOT EXISTS chain_events_orphaned ON herald.chain_events (chain_id, contract) WHERE state = 'orphaned';

ALTER TABLE herald.chain_cursors
    ADD COLUMN IF NOT EXISTS finalized_block bigint NOT NULL DEFAULT 0, -- 0: unknown
    ADD COLUMN IF NOT EXISTS settled_block   bigint NOT NULL DEFAULT 0, -- no reorg is expected to replace it
    ADD COLUMN IF NOT EXISTS reorgs          bigint NOT NULL DEFAULT 0; -- how often blocks were read again

-- Whether the cursor of a contract has read a block. Then only that cursor decides which of the block's events a reorg
-- removed, and a backfill of the block does not.
CREATE OR REPLACE FUNCTION herald.is_followed(x_chain bigint, x_contract text, x_block bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM herald.chain_cursors
                    WHERE chain_id = x_chain AND contracts = x_contract AND backfill = '' AND start_block <= x_block AND next_block > x_block)
$$;

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.chain_cursors
    DROP COLUMN IF EXISTS finalized_block,
    DROP COLUMN IF EXISTS settled_block,
    DROP COLUMN IF EXISTS reorgs;
DROP TABLE IF EXISTS herald.chain_events;
DROP FUNCTION IF EXISTS herald.is_followed;
SET lock_timeout = 0;
