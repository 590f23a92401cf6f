-- raise_epoch: raise the epoch of an agent that changed, so that workers resolve the agent again. The transaction has
-- locked the agent.
--
-- $1 chain   $2 identity registry   $3 agent id
UPDATE herald.agents SET epoch = epoch + 1, updated_at = now()
 WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3
