-- lock_known: lock a delivery that can still be called with another job, if it still has the job that was read.
--
-- Returns no row if it was called, has ended or has another job now.
--
-- $1 id   $2 key   $3 job jsonb
SELECT true FROM herald.deliveries
 WHERE id = $1 AND key = $2 AND job = $3 AND NOT called AND status IN ('queued', 'running', 'waiting', 'held')
   FOR UPDATE
