-- lock_agent_of: lock the agent of a waiting delivery, before yield.sql. See lock_agent.sql.
--
-- $1 delivery id
SELECT FROM herald.agents
 WHERE (chain_id, identity_registry, agent_id) =
       (SELECT chain_id, identity_registry, agent_id FROM herald.work WHERE id = $1 AND status = 'waiting')
   FOR NO KEY UPDATE
