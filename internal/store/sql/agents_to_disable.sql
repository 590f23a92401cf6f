-- agents_to_disable: enabled agents that failed every call for a time: at least two calls, and one within the last day, so
-- that an agent which nobody calls is not judged by what was once. last_ok_at is asked besides failing_since: a worker of
-- a version that knows no failing_since may have had a success.
--
-- $1 time (interval)   $2 limit
SELECT chain_id, identity_registry, agent_id::text
  FROM herald.agents
 WHERE failing_since <= now() - $1::interval AND enabled AND last_error_at > failing_since
   AND last_error_at >= now() - interval '1 day' AND (last_ok_at IS NULL OR last_ok_at < failing_since)
 ORDER BY failing_since
 LIMIT $2
