-- open_cursor: read a chain's cursor, or insert a new one.
--
-- $1 chain   $2 follower   $3 first block to read and $4 last block, or null: no end; used only for the insert
WITH made AS (
    INSERT INTO herald.chain_cursors (chain_id, follower, start_block, end_block, next_block)
    VALUES ($1, $2, $3, $4, $3)
    ON CONFLICT DO NOTHING
    RETURNING start_block, end_block, next_block, blocks, head_block, finalized_block, settled_block, reorgs, moves, checks
)
SELECT * FROM made
UNION ALL
SELECT start_block, end_block, next_block, blocks, head_block, finalized_block, settled_block, reorgs, moves, checks
  FROM herald.chain_cursors WHERE chain_id = $1 AND follower = $2
 LIMIT 1
