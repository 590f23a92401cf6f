-- claim_alert: the alert that is due longest, for one attempt to post it. Until the lease is over nobody else has it;
-- then it is due again: who claimed it may have died between the post and its mark.
--
-- $1 lease (interval)
UPDATE herald.alerts
   SET attempts = attempts + 1, next_attempt_at = now() + $1::interval
 WHERE id = (SELECT id FROM herald.alerts WHERE next_attempt_at <= now() ORDER BY next_attempt_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, kind, payload::text, attempts, now() - created_at
