-- too_old: deliveries that had all the time there is. Running ones end with their lease first.
--
-- $1 age (interval)   $2 at most this many
SELECT id, chain_id, identity_registry, agent_id::text
  FROM herald.deliveries
 WHERE finished_at IS NULL AND accepted_at < now() - $1::interval AND status IN ('queued', 'waiting', 'held')
 ORDER BY accepted_at
 LIMIT $2
