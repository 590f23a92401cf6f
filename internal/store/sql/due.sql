-- due: list the waiting deliveries that have no task in Redis and whose wait is over, for requeue.sql.
--
-- $1 at most this many
SELECT id, chain_id, identity_registry, agent_id::text
  FROM herald.work
 WHERE place = 'waiting' AND next_attempt_at <= now()
 ORDER BY next_attempt_at
 LIMIT $1
