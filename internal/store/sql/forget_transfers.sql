-- forget_transfers: delete the stored transfers of agents to other owners in blocks that a reorg replaced. The caller
-- reads the new blocks and stores their transfers.
--
-- $1 chain   $2 identity registries text[]   $3 backfill, or ''
-- $4 the first replaced block   $5 the first block that had not been read
--
-- A backfill does not delete transfers in blocks that a contract's own cursor has read.
DELETE FROM herald.agent_transfers
 WHERE chain_id = $1 AND identity_registry = ANY($2) AND block_number >= $4 AND block_number < $5
   AND ($3 = '' OR NOT herald.is_followed(chain_id, identity_registry, block_number))
