-- list_orphans: list the deliveries of some cursors whose events are orphaned: a reorg replaced their blocks. After the
-- cursors have read up to the chain's newest block, orphans.sql ends those whose events were not found again. The
-- caller locks their agents first.
--
-- $1 chain   $2 contracts text[] and $3 backfill: the cursors' keys
--
-- For a backfill, the list omits events in blocks that a contract's own cursor has read.
SELECT d.id, d.chain_id, d.identity_registry, d.agent_id::text
  FROM herald.chain_cursors c
  JOIN herald.chain_events e ON e.chain_id = c.chain_id AND e.contract = ANY(string_to_array(c.contracts, ',')) AND e.state = 'orphaned'
       AND e.block_number >= c.start_block AND e.block_number <= coalesce(c.end_block, e.block_number)
       AND (c.backfill = '' OR NOT herald.is_followed(e.chain_id, e.contract, e.block_number))
  JOIN herald.history d ON d.id = e.delivery_id
 WHERE c.chain_id = $1 AND c.contracts = ANY($2) AND c.backfill = $3
