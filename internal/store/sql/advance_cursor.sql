-- advance_cursor: move a chain's cursor on, or back to what a reorg replaced. It goes first in the transaction that accepts the jobs of
-- what was read: who reads the same chain at the same time waits for it, and then finds no row.
--
-- @chain_id, @follower
-- @moves      how often it had moved, as its owner knows it
-- @from       the first block that was read now: when it is before the cursor, blocks were replaced, and their events are orphaned
-- @next       next block from now on
-- @blocks, @checks   jsonb   @head, @finalized: of the node
-- @settled    no reorg is expected to replace this block: what is known of events up to it, and before what was read, is dropped
--
-- Returns how often it has moved, and whether events are orphaned.
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
