-- retain_attempts: delete old attempts from the default partition, which is never dropped.
--
-- Attempts of open deliveries stay.
--
-- $1 age (interval)   $2 at most this many
DELETE FROM herald.attempts_default
 WHERE ctid = ANY (ARRAY(
       SELECT a.ctid FROM herald.attempts_default a
        WHERE a.started_at < now() - $1::interval
          AND NOT EXISTS (SELECT FROM herald.work d WHERE d.id = a.delivery_id)
        ORDER BY a.started_at LIMIT $2 FOR UPDATE OF a SKIP LOCKED))
