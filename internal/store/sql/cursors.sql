-- cursors: how far chains have been read; cursors without an end block come first within their chain.
--
-- $1 chain, or 0: all
SELECT chain_id, follower, start_block, end_block, next_block, head_block, finalized_block, settled_block, reorgs, updated_at, checks,
       stalled_since, coalesce(stalled_why, '')
  FROM herald.chain_cursors
 WHERE $1::bigint IN (chain_id, 0)
 ORDER BY chain_id, end_block IS NOT NULL, follower
