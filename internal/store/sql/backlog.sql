-- backlog: list the next agents that have a backlog and fewer dispatched deliveries than they may have.
--
-- $1 how many deliveries of an agent may be dispatched (8); half of them if its backlog has only a backfill
-- $2 at most this many agents
-- $3 $4 $5 chain, identity registry and id of the agent before the first one
-- $6 how many agents with a backlog are read; the last of them is listed in any case, so that the caller can continue
--
-- Returns the agents, and whether each is that last one.
--
-- The recursion jumps from agent to agent through the index work_agent, so that an agent with a long backlog costs
-- as much as one with a short backlog. Strangers can make very many agents whose deliveries are all dispatched.
WITH RECURSIVE line AS (
    SELECT 0 AS n, $3::bigint AS chain_id, $4::text AS identity_registry, $5::text::numeric AS agent_id, false AS bulk
    UNION ALL
    SELECT l.n + 1, n.chain_id, n.identity_registry, n.agent_id, n.bulk
      FROM line l
     CROSS JOIN LATERAL (
           SELECT chain_id, identity_registry, agent_id, bulk
             FROM herald.work
            WHERE place = 'line'
              AND (chain_id, identity_registry, agent_id) > (l.chain_id, l.identity_registry, l.agent_id)
            ORDER BY chain_id, identity_registry, agent_id, bulk LIMIT 1) n
     WHERE l.n < $6
)
SELECT l.chain_id, l.identity_registry, l.agent_id::text, n = $6
  FROM line l
 WHERE n = $6 OR n > 0
   AND (SELECT count(handed_at) FROM herald.work d
         WHERE d.chain_id = l.chain_id AND d.identity_registry = l.identity_registry AND d.agent_id = l.agent_id
           AND d.place = 'out') < $1 / CASE WHEN l.bulk THEN 2 ELSE 1 END
 LIMIT $2
