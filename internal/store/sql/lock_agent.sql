-- lock_agent: lock one agent. Runs first in the batch that records or reclaims, as intake and reconciler do too:
-- whoever locks an agent and its deliveries locks the agent first, or two of them could wait for each other. A
-- statement of its own, so that those after it see what the last holder of the lock has committed.
--
-- $1 chain id   $2 identity registry   $3 agent id
SELECT FROM herald.agents WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 FOR NO KEY UPDATE
