-- due: hand out waits that stayed in Postgres and are over.
--
-- $1 at most this many
UPDATE herald.deliveries d
   SET dispatch = dispatch + 1, handed_at = now(), updated_at = now()
 WHERE id IN (SELECT id FROM herald.deliveries
               WHERE status = 'waiting' AND next_attempt_at <= now() AND handed_at IS NULL
               ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING d.id, d.dispatch, d.kind, d.attempts, now()
