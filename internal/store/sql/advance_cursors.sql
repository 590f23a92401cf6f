-- advance_cursors: move the cursors of contracts forward to a new next block, after their blocks were read. If a reorg
-- replaced blocks, which were read again, the events of the replaced blocks become orphaned. All cursors have the same
-- next block.
--
-- This is the first statement of the transaction that accepts the jobs of these blocks. It locks the cursors in the
-- order of their contracts. If a second process moves one of them too, it waits for the row lock and then finds that
-- the number of moves has changed.
--
-- @chain_id, @contracts text[], @backfill   the cursors' keys
-- @moves      bigint[]: how often each cursor had moved when the caller read it
-- @registries text[]: the addresses of the contracts that were read; a backfill has several in one cursor
-- @from       first block of this read
-- @rewinds    whether @from is before the cursors' next block, because a reorg replaced the blocks from @from on
-- @next       next block to read
-- @blocks, @checks   jsonb   @head, @finalized: the node's newest and newest finalized block
-- @settled    no reorg is expected to replace this block: remembered events up to it and before @from are deleted
--
-- A backfill does not change events in blocks that a contract's own cursor has read, because that cursor is responsible
-- for them. Events that a worker's check found in a block before @next, and with which the agent was called, become
-- orphaned too. The caller then remembers the block's events, so those that the block has are no longer orphaned. Those
-- that the block lacks are gone, or their delivery's next check finds them.
--
-- Returns how many cursors moved, and whether their contracts have orphaned events. The caller rolls back if not all of
-- them moved.
WITH own AS MATERIALIZED (
    SELECT c.contracts
      FROM unnest(@contracts::text[], @moves::bigint[]) AS w(contracts, moves)
      JOIN herald.chain_cursors c ON c.chain_id = @chain_id AND c.contracts = w.contracts AND c.backfill = @backfill AND c.moves = w.moves
     ORDER BY c.contracts
       FOR UPDATE OF c
), moved AS (
    UPDATE herald.chain_cursors c
       SET next_block = @next, blocks = @blocks, head_block = @head, finalized_block = @finalized, settled_block = @settled,
           checks = @checks, stalled_since = NULL, stalled_why = NULL,
           reorgs = reorgs + @rewinds::boolean::int, moves = c.moves + 1, updated_at = now()
      FROM own
     WHERE c.chain_id = @chain_id AND c.contracts = own.contracts AND c.backfill = @backfill
    RETURNING c.end_block
), orphaned AS (
    UPDATE herald.chain_events
       SET state = 'orphaned'
     WHERE @rewinds::boolean AND chain_id = @chain_id AND contract = ANY(@registries::text[]) AND block_number >= @from
       AND block_number <= (SELECT coalesce(min(end_block), 9223372036854775807) FROM moved) AND state = 'canonical'
       AND (@backfill = '' OR NOT herald.is_followed(chain_id, contract, block_number))
    RETURNING 1
), checked AS (
    UPDATE herald.chain_events e
       SET state = CASE WHEN (SELECT coalesce(w.called, h.called) FROM herald.history h LEFT JOIN herald.work w ON w.id = h.id
                               WHERE h.id = e.delivery_id) THEN 'orphaned' ELSE state END
     WHERE @backfill = '' AND chain_id = @chain_id AND contract = ANY(@registries::text[]) AND state = 'checked' AND block_number < @next
       AND (block_number > @settled OR block_number >= @from)
    RETURNING 1
), settled AS (
    DELETE FROM herald.chain_events
     WHERE chain_id = @chain_id AND contract = ANY(@registries::text[]) AND block_number <= @settled AND block_number < @from
       AND state IN ('canonical', 'checked')
)
SELECT (SELECT count(*) FROM moved),
       EXISTS (SELECT FROM orphaned) OR EXISTS (SELECT FROM checked)
    OR EXISTS (SELECT FROM herald.chain_events
                WHERE chain_id = @chain_id AND contract = ANY(@registries::text[]) AND state = 'orphaned')
