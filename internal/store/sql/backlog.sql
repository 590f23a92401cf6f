-- backlog: list the agents that have a backlog and fewer dispatched deliveries than they may have.
--
-- $1 how many deliveries of an agent may be dispatched (8); half of them if its backlog has only a backfill
-- $2 at most this many agents
--
-- The recursion jumps from agent to agent through the index work_agent, so that an agent with a long backlog costs
-- as much as one with a short backlog.
WITH RECURSIVE line AS (
    (SELECT chain_id, identity_registry, agent_id, bulk
       FROM herald.work
      WHERE place = 'line'
      ORDER BY chain_id, identity_registry, agent_id, bulk LIMIT 1)
    UNION ALL
    SELECT n.chain_id, n.identity_registry, n.agent_id, n.bulk
      FROM line l
     CROSS JOIN LATERAL (
           SELECT chain_id, identity_registry, agent_id, bulk
             FROM herald.work
            WHERE place = 'line'
              AND (chain_id, identity_registry, agent_id) > (l.chain_id, l.identity_registry, l.agent_id)
            ORDER BY chain_id, identity_registry, agent_id, bulk LIMIT 1) n
)
SELECT l.chain_id, l.identity_registry, l.agent_id::text
  FROM line l
 WHERE (SELECT count(handed_at) FROM herald.work d
         WHERE d.chain_id = l.chain_id AND d.identity_registry = l.identity_registry AND d.agent_id = l.agent_id
           AND d.place = 'out') < $1 / CASE WHEN l.bulk THEN 2 ELSE 1 END
 LIMIT $2
