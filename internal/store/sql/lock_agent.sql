-- lock_agent: lock one agent.
--
-- Every transaction that locks agents and deliveries locks the agents first, so that no two transactions deadlock. So
-- this statement comes first in the batches that record outcomes or claim waiting deliveries. It is separate so that
-- the statements after it see everything that the lock's previous holder committed.
--
-- $1 chain id   $2 identity registry   $3 agent id
SELECT FROM herald.agents WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 FOR NO KEY UPDATE
