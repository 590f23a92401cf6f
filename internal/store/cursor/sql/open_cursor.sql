-- open_cursor: read a cursor, or insert a new one.
--
-- $1 chain   $2 contracts   $3 backfill, or ''
-- $4 first block to read and $5 last block, or null: no end; an existing cursor keeps its own
--
-- The last column is the newest block up to the cursor's end that has an orphaned event, or 0 (advance_cursors.sql).
WITH made AS (
    INSERT INTO herald.chain_cursors (chain_id, contracts, backfill, start_block, end_block, next_block)
    VALUES ($1, $2, $3, $4, $5, $4)
    ON CONFLICT DO NOTHING
    RETURNING start_block, end_block, next_block, blocks, head_block, finalized_block, settled_block, reorgs, moves, checks
)
SELECT *, 0 FROM made
UNION ALL
SELECT start_block, end_block, next_block, blocks, head_block, finalized_block, settled_block, reorgs, moves, checks,
       (SELECT coalesce(max(e.block_number), 0) FROM herald.chain_events e
         WHERE e.chain_id = $1 AND e.contract = ANY(string_to_array($2, ',')) AND e.state = 'orphaned'
           AND e.block_number <= coalesce(end_block, e.block_number))
  FROM herald.chain_cursors WHERE chain_id = $1 AND contracts = $2 AND backfill = $3
 LIMIT 1
