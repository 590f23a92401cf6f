-- note_transfer: store a transfer of an agent to another owner.
--
-- If a reorg puts the transaction into another block, the caller calls the statement again, and the row gets that block
-- and time.
--
-- @chain_id, @registry, @agent_id text, @transaction_hash, @log_index, @block_number, @from, @to, @at (unix seconds)
INSERT INTO herald.agent_transfers (chain_id, identity_registry, agent_id, transaction_hash, log_index, block_number, from_address, to_address, at)
VALUES (@chain_id, @registry, @agent_id::text::numeric, @transaction_hash, @log_index, @block_number, @from, @to, to_timestamp(@at::bigint))
ON CONFLICT (chain_id, identity_registry, agent_id, transaction_hash, log_index)
DO UPDATE SET block_number = excluded.block_number, at = excluded.at
