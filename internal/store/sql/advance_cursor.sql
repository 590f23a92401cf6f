-- advance_cursor: move a chain's cursor forward, or back to the first block that a reorg replaced.
--
-- This is the first statement of the transaction that accepts the jobs of the blocks that were read. A second process
-- that reads the same chain waits for its row lock, and then matches no row.
--
-- @chain_id, @follower
-- @moves      how often the cursor had moved when its owner read it
-- @from       first block of this read; if it is before the cursor, blocks were replaced: their events become orphaned
-- @next       next block to read
-- @blocks, @checks   jsonb   @head, @finalized: the node's newest and newest finalized block
-- @settled    no reorg is expected to replace this block: remembered events up to it and before @from are deleted
--
-- Returns how often the cursor has moved, and whether the cursor has orphaned events.
WITH moved AS (
    UPDATE herald.chain_cursors
       SET next_block = @next, blocks = @blocks, head_block = @head, finalized_block = @finalized, settled_block = @settled,
           checks = @checks, stalled_since = NULL, stalled_why = NULL,
           reorgs = reorgs + (next_block > @from)::int, moves = moves + 1, updated_at = now()
     WHERE chain_id = @chain_id AND follower = @follower AND moves = @moves
    RETURNING moves
), orphaned AS (
    UPDATE herald.chain_events
       SET state = 'orphaned'
     WHERE chain_id = @chain_id AND follower = @follower AND block_number >= @from AND state = 'canonical' AND EXISTS (SELECT FROM moved)
    RETURNING 1
), settled AS (
    DELETE FROM herald.chain_events
     WHERE chain_id = @chain_id AND follower = @follower AND block_number <= @settled AND block_number < @from AND state = 'canonical'
       AND EXISTS (SELECT FROM moved)
)
SELECT moves, EXISTS (SELECT FROM orphaned)
           OR EXISTS (SELECT FROM herald.chain_events WHERE chain_id = @chain_id AND follower = @follower AND state = 'orphaned')
  FROM moved
