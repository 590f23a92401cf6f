-- backlog: agents that have something to hand out and a free place.
--
-- $1 how many an agent may have handed out (8)   $2 at most this many agents
SELECT b.chain_id, b.identity_registry, b.agent_id::text
  FROM (SELECT DISTINCT chain_id, identity_registry, agent_id FROM herald.deliveries
         WHERE status = 'queued' AND handed_at IS NULL) b
 WHERE (SELECT count(*) FROM herald.deliveries d
         WHERE (d.chain_id, d.identity_registry, d.agent_id) = (b.chain_id, b.identity_registry, b.agent_id)
           AND d.status IN ('queued', 'running') AND d.handed_at IS NOT NULL) < $1
 LIMIT $2
