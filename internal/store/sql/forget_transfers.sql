-- forget_transfers: forget to whom agents were given in blocks that are read again, since others are there now.
--
-- $1 chain   $2 the first of them   $3 the first block that was not read
DELETE FROM herald.agent_transfers WHERE chain_id = $1 AND block_number >= $2 AND block_number < $3
