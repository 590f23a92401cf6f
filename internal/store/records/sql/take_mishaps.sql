-- take_mishaps: read and delete the counters of deliveries that became dead or held (herald.mishaps), for alerts. There
-- is one counter for each agent, status and reason.
--
-- If an agent had an alert of the same kind within the pause, its counters stay until the pause is over, so that many
-- failures cause few alerts. The statement skips counters that another transaction has locked, so it does not wait for
-- a record.
--
-- $1 pause (interval)   $2 limit
WITH due AS (
    SELECT m.chain_id, m.identity_registry, m.agent_id, m.status, m.reason
      FROM herald.mishaps m
     WHERE NOT EXISTS (SELECT FROM herald.alerts a
                        WHERE a.chain_id = m.chain_id AND a.identity_registry = m.identity_registry AND a.agent_id = m.agent_id
                          AND a.kind = 'deliveries.' || m.status AND a.created_at > now() - $1::interval)
     ORDER BY 1, 2, 3, 4, 5
     LIMIT $2
       FOR UPDATE OF m SKIP LOCKED
), taken AS (
    DELETE FROM herald.mishaps m USING due
     WHERE (m.chain_id, m.identity_registry, m.agent_id, m.status, m.reason)
         = (due.chain_id, due.identity_registry, due.agent_id, due.status, due.reason)
    RETURNING m.*
)
SELECT status, chain_id, identity_registry, agent_id::text, reason, count, deliveries FROM taken ORDER BY 2, 3, 4, 1, 5
