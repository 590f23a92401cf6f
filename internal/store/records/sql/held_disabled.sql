-- held_disabled: list the next agents that have deliveries held because the agent was disabled (agent_disabled), and
-- whether each is enabled now.
--
-- $1 $2 $3: chain, identity registry and id of the agent before the first one   $4 how many agents are read
--
-- The recursion jumps from agent to agent through the index work_held, because an agent may have very many held
-- deliveries.
WITH RECURSIVE held AS (
    SELECT 0 AS n, $1::bigint AS chain_id, $2::text AS identity_registry, $3::text::numeric AS agent_id
    UNION ALL
    SELECT h.n + 1, d.chain_id, d.identity_registry, d.agent_id
      FROM held h
     CROSS JOIN LATERAL (
           SELECT chain_id, identity_registry, agent_id
             FROM herald.work
            WHERE (place || '') = 'held' AND reason = 'agent_disabled'
              AND (chain_id, identity_registry, agent_id) > (h.chain_id, h.identity_registry, h.agent_id)
            ORDER BY chain_id, identity_registry, agent_id LIMIT 1) d
     WHERE h.n < $4
)
SELECT h.chain_id, h.identity_registry, h.agent_id::text, coalesce(g.enabled, false)
  FROM held h
  LEFT JOIN LATERAL (SELECT enabled FROM herald.agents
                      WHERE chain_id = h.chain_id AND identity_registry = h.identity_registry AND agent_id = h.agent_id OFFSET 0) g ON true
 WHERE h.n > 0
 ORDER BY h.n
