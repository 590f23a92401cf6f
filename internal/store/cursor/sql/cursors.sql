-- cursors: list the cursors of one or all chains; within a chain, those of contracts come before those of backfills.
--
-- $1 chain, or 0: all
SELECT chain_id, contracts, backfill, start_block, end_block, next_block, head_block, finalized_block, settled_block, reorgs, updated_at,
       checks, stalled_since, coalesce(stalled_why, '')
  FROM herald.chain_cursors
 WHERE $1::bigint IN (chain_id, 0)
 ORDER BY chain_id, backfill <> '', backfill, contracts
