-- agents_to_disable: list the enabled agents whose calls have all failed for a time.
--
-- At least two calls failed, and one of them within the last day, so that an agent without recent calls is not disabled
-- for old failures.
--
-- $1 time (interval)   $2 limit
-- $3 $4 $5, $6 $7 $8: chain, identity registry and id of the agent before the part that is read, and of its last agent
SELECT chain_id, identity_registry, agent_id::text
  FROM herald.agents
 WHERE failing_since <= now() - $1::interval AND enabled AND last_error_at > failing_since
   AND last_error_at >= now() - interval '1 day'
   AND (chain_id, identity_registry, agent_id) > ($3, $4, $5::text::numeric)
   AND (chain_id, identity_registry, agent_id) <= ($6, $7, $8::text::numeric)
 ORDER BY failing_since
 LIMIT $2
