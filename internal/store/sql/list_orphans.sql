-- list_orphans: list the deliveries with orphaned events of some cursors, with their agents. orphans.sql ends them
-- after the cursors have read up to the chain's newest block. The caller locks the agents first.
--
-- $1 chain   $2 contracts text[] and $3 backfill: the cursors' keys
--
-- For a backfill, events of blocks that a contract's cursor has read are omitted.
SELECT d.id, d.chain_id, d.identity_registry, d.agent_id::text
  FROM herald.chain_cursors c
  JOIN herald.chain_events e ON e.chain_id = c.chain_id AND e.contract = ANY(string_to_array(c.contracts, ',')) AND e.state = 'orphaned'
       AND e.block_number >= c.start_block AND e.block_number <= coalesce(c.end_block, e.block_number)
       AND (c.backfill = '' OR NOT herald.is_followed(e.chain_id, e.contract, e.block_number))
  JOIN herald.history d ON d.id = e.delivery_id
 WHERE c.chain_id = $1 AND c.contracts = ANY($2) AND c.backfill = $3
