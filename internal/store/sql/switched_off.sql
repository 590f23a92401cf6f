-- switched_off: list deliveries that wait for another one of their ordering key (behind_earlier), although the order is
-- switched off. Responses, which always wait for their feedback, are not listed.
--
-- $1 the order of agents whose policy has none: strict or off   $2 at most this many
--
-- Plan: the first part repeats the condition of the index work_behind, and the second one the columns of work_agent.
-- Otherwise each call could read all deliveries that wait, or all agents.
(SELECT w.id, w.chain_id, w.identity_registry, w.agent_id::text
   FROM herald.work w
   LEFT JOIN LATERAL (SELECT policy FROM herald.agents
                       WHERE chain_id = w.chain_id AND identity_registry = w.identity_registry AND agent_id = w.agent_id OFFSET 0) g ON true
  WHERE $1::text = 'off' AND g.policy ->> 'order' IS DISTINCT FROM 'strict'
    AND (w.place || w.reason) = 'waitingbehind_earlier' AND (w.order_hash + 0) IS NOT NULL AND w.kind <> 'ResponseAppended'
  LIMIT $2)
UNION ALL
(SELECT d.id, g.chain_id, g.identity_registry, g.agent_id::text
   FROM herald.agents g
  CROSS JOIN LATERAL (SELECT id FROM herald.work
                       WHERE chain_id = g.chain_id AND identity_registry = g.identity_registry AND agent_id = g.agent_id
                         AND place = 'waiting' AND reason = 'behind_earlier' AND (order_hash + 0) IS NOT NULL AND kind <> 'ResponseAppended'
                       LIMIT $2) d
  WHERE $1::text <> 'off' AND g.policy ->> 'order' = 'off'
  LIMIT $2)
