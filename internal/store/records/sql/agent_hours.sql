-- agent_hours: read the hourly counts of an agent's calls, oldest hour first.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 since (timestamptz)   $5 how long hours are kept (interval)
--
-- The primary key begins with the hour, so each hour is one lookup by the whole key, 2,161 lookups at most. The counts
-- of the last hour with a call are in the agent's own row; agent_hours has the earlier ones.
WITH period AS MATERIALIZED (
    SELECT date_trunc('hour', greatest($4::timestamptz, now() - $5::interval), 'UTC') AS since
)
SELECT h.hour, h.calls, h.failed, h.failures, h.latency
  FROM generate_series((SELECT since FROM period), now(), '1 hour') AS g(hour)
 CROSS JOIN LATERAL (SELECT * FROM herald.agent_hours
                      WHERE hour = g.hour AND chain_id = $1 AND identity_registry = $2 AND agent_id = $3 OFFSET 0) h
UNION ALL
SELECT hour, hour_calls, hour_failed, hour_failures, hour_latency
  FROM herald.agents
 WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND hour BETWEEN (SELECT since FROM period) AND now()
 ORDER BY 1
