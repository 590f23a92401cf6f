-- step_behind: a wait that is over steps behind another delivery of its client that goes first (order_wait): an earlier one that came
-- meanwhile, or a later one that is under way because this one had its time. The claim that follows then refuses.
--
-- $1 delivery id   $2 n   $3 tolerance for clock differences (interval)
--
-- The agent is locked. Whoever records the other one has it dispatched anew.
UPDATE herald.deliveries d
   SET status = 'waiting', reason = 'behind_earlier', error = 'another delivery of this client goes first',
       handed_at = NULL, next_attempt_at = w.look, updated_at = now(),
       awaits_feedback = herald.awaits_feedback(kind, key, order_key, order_seq)
  FROM (SELECT id, herald.order_wait(id, chain_id, identity_registry, agent_id, kind, key, order_key, order_seq) AS look
          FROM herald.deliveries
         WHERE id = $1 AND dispatch = $2 AND status = 'waiting' AND handed_at IS NOT NULL AND next_attempt_at <= now() + $3::interval
        OFFSET 0) w
 WHERE d.id = w.id AND w.look IS NOT NULL
