-- agent_hours: what calls of an agent came to, hour by hour, oldest first.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 since (timestamptz)   $5 how long hours are kept (interval)
--
-- The key begins with the hour, so each hour is looked up by the whole of it: 2,161 at most. The last hour with a call is
-- in the agent's own row; hours there are those that ended.
WITH asked AS MATERIALIZED (
    SELECT date_trunc('hour', greatest($4::timestamptz, now() - $5::interval), 'UTC') AS since
)
SELECT h.hour, h.calls, h.failed, h.failures, h.latency
  FROM generate_series((SELECT since FROM asked), now(), '1 hour') AS g(hour)
 CROSS JOIN LATERAL (SELECT * FROM herald.agent_hours
                      WHERE hour = g.hour AND chain_id = $1 AND identity_registry = $2 AND agent_id = $3 OFFSET 0) h
UNION ALL
SELECT hour, hour_calls, hour_failed, hour_failures, hour_latency
  FROM herald.agents
 WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND hour >= (SELECT since FROM asked)
 ORDER BY 1
