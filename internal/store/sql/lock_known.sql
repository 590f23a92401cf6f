-- lock_known: a delivery that could still be called with another job, as it was read a moment ago, until the
-- transaction ends. No row: it was called, has ended or has another job now.
--
-- $1 id   $2 key   $3 job jsonb
SELECT true FROM herald.deliveries
 WHERE id = $1 AND key = $2 AND job = $3 AND NOT called AND status IN ('queued', 'running', 'waiting', 'held')
   FOR UPDATE
