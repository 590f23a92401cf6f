-- look_part: return the last agent of the part that the next look for alerts reads. A part has at most a number of failing
-- agents, of disabled agents, and of agents in alerted_agents.
--
-- Strangers can create agents that fail for ever. A look at all of them would take longer than Postgres allows.
--
-- $1 chain, $2 identity registry, $3 agent id: the last agent of the previous part   $4 the number less one
--
-- Returns no row if the part has all remaining agents.
SELECT chain_id, identity_registry, agent_id::text
  FROM ((SELECT chain_id, identity_registry, agent_id FROM herald.agents
          WHERE failing_since IS NOT NULL AND (chain_id, identity_registry, agent_id) > ($1, $2, $3::text::numeric)
          ORDER BY chain_id, identity_registry, agent_id OFFSET $4 LIMIT 1)
         UNION ALL
        (SELECT chain_id, identity_registry, agent_id FROM herald.agents
          WHERE state = 'disabled' AND (state || '') <> '' AND (chain_id, identity_registry, agent_id) > ($1, $2, $3::text::numeric)
          ORDER BY chain_id, identity_registry, agent_id OFFSET $4 LIMIT 1)
         UNION ALL
        (SELECT chain_id, identity_registry, agent_id FROM herald.alerted_agents
          WHERE (chain_id, identity_registry, agent_id) > ($1, $2, $3::text::numeric)
          ORDER BY chain_id, identity_registry, agent_id OFFSET $4 LIMIT 1)) ends
 ORDER BY ends.chain_id, ends.identity_registry, ends.agent_id
 LIMIT 1
