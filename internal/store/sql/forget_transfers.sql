-- forget_transfers: delete transfers of agents in blocks that are read again, because a reorg replaced those blocks.
--
-- $1 chain   $2 the first of the blocks   $3 the first block that was not read
DELETE FROM herald.agent_transfers WHERE chain_id = $1 AND block_number >= $2 AND block_number < $3
