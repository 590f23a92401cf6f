-- overdue: list the tasks that should have been claimed by now.
--
-- The caller asks Redis whether it still has these tasks.
--
-- $1 how long ago they were due (interval)   $2 after this id (cursor)   $3 at most this many
WITH late AS MATERIALIZED ( -- by place; with a condition on the id, Postgres could read all open deliveries
    SELECT id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base
      FROM herald.work
     WHERE place IN ('out', 'task') AND status <> 'running'
       AND handed_at < now() - $1::interval
       AND (status = 'queued' OR next_attempt_at < now() - $1::interval)
)
SELECT * FROM late
 WHERE id > $2
 ORDER BY id
 LIMIT $3
