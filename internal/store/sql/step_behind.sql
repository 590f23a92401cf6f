-- step_behind: make a due delivery wait again (behind_earlier) if another of its ordering key goes first (order_wait).
--
-- The other delivery is an earlier one that was accepted in the meantime, or a later one that was dispatched because
-- the 60 s of this one had passed. The claim that follows in the batch then returns no row.
--
-- $1 delivery id   $2 n   $3 tolerance for clock differences (interval)
--
-- The transaction has locked the agent. When the other delivery is recorded, this one is dispatched with a new task.
UPDATE herald.deliveries d
   SET status = 'waiting', reason = 'behind_earlier', error = 'another delivery of this client goes first',
       handed_at = NULL, next_attempt_at = w.recheck_at, updated_at = now(),
       awaits_feedback = herald.awaits_feedback(kind, key, order_key, order_seq)
  FROM (SELECT id, herald.order_wait(id, chain_id, identity_registry, agent_id, kind, key, order_key, order_seq) AS recheck_at
          FROM herald.deliveries
         WHERE id = $1 AND dispatch = $2 AND status = 'waiting' AND handed_at IS NOT NULL AND next_attempt_at <= now() + $3::interval
        OFFSET 0) w
 WHERE d.id = w.id AND w.recheck_at IS NOT NULL
