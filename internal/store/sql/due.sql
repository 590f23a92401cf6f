-- due: list the waiting deliveries whose wait is over and that have no task in Redis.
--
-- $1 at most this many
SELECT id, chain_id, identity_registry, agent_id::text
  FROM herald.work
 WHERE place = 'waiting' AND next_attempt_at <= now()
 ORDER BY next_attempt_at
 LIMIT $1
