-- drop_agent_hours: delete old hourly counts of agents' calls, the oldest hours first.
--
-- $1 age (interval)   $2 at most this many
--
-- No other transaction writes these rows: a record writes only the current hour of its agent.
DELETE FROM herald.agent_hours
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM herald.agent_hours WHERE hour < now() - $1::interval ORDER BY hour LIMIT $2))
