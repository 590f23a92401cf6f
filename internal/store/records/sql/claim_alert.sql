-- claim_alert: claim the alert that has been due longest, for one attempt to post it.
--
-- No other worker gets the alert before the lease ends. Then it is due again, because the worker that claimed it may
-- have died between the post and its record.
--
-- $1 lease (interval)
UPDATE herald.alerts
   SET attempts = attempts + 1, next_attempt_at = now() + $1::interval
 WHERE id = (SELECT id FROM herald.alerts WHERE next_attempt_at <= now() ORDER BY next_attempt_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, kind, payload::text, attempts, now() - created_at
