-- forget_transfers: delete transfers of agents in blocks that are read again, because a reorg replaced those blocks.
--
-- $1 chain   $2 identity registries text[]   $3 backfill, or ''   $4 the first of the blocks   $5 the first block that
-- was not read
--
-- A backfill does not delete transfers in blocks that a contract's cursor has read.
DELETE FROM herald.agent_transfers
 WHERE chain_id = $1 AND identity_registry = ANY($2) AND block_number >= $4 AND block_number < $5
   AND ($3 = '' OR NOT herald.is_followed(chain_id, identity_registry, block_number))
