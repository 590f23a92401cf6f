-- held_disabled: list the enabled agents that have deliveries held because the agent was disabled.
--
-- The recursion jumps from agent to agent through the index work_agent, because an agent may have very many held
-- deliveries.
WITH RECURSIVE held AS (
    (SELECT chain_id, identity_registry, agent_id
       FROM herald.work
      WHERE place = 'held'
      ORDER BY chain_id, identity_registry, agent_id LIMIT 1)
    UNION ALL
    SELECT n.chain_id, n.identity_registry, n.agent_id
      FROM held h
     CROSS JOIN LATERAL (
           SELECT chain_id, identity_registry, agent_id
             FROM herald.work
            WHERE place = 'held' AND (chain_id, identity_registry, agent_id) > (h.chain_id, h.identity_registry, h.agent_id)
            ORDER BY chain_id, identity_registry, agent_id LIMIT 1) n
)
SELECT g.chain_id, g.identity_registry, g.agent_id::text
  FROM held h
 CROSS JOIN LATERAL (SELECT chain_id, identity_registry, agent_id FROM herald.agents
                      WHERE chain_id = h.chain_id AND identity_registry = h.identity_registry AND agent_id = h.agent_id AND enabled OFFSET 0) g
 CROSS JOIN LATERAL (SELECT FROM herald.work -- only of enabled agents
                      WHERE place = 'held' AND chain_id = g.chain_id AND identity_registry = g.identity_registry AND agent_id = g.agent_id
                        AND reason = 'agent_disabled' LIMIT 1) d
