-- claim: claim deliveries for their tasks, in one statement and one commit (parts/claim.sql).
--
-- @ids uuid[], each once   @ns int[]: the tasks' dispatch counters   @lease, @recent (intervals)
-- @tolerance: clock tolerance (interval); null: only queued rows are claimed, because a waiting one must yield.sql first
--
-- Claims a row only when the task is the newest one (dispatch = n), still dispatched (handed_at is set: a row that went
-- back to the backlog is not, even if Redis still has its task), and ready: queued, or waiting and due. The answer omits
-- rows that are refused or locked by another transaction. So the statement waits for no lock, and cannot be part of a
-- deadlock with a transaction that locks agents first. A caller that must not skip a row runs lock_delivery.sql before.
WITH ready AS MATERIALIZED (
    SELECT id, status = 'waiting' AS waited
      FROM herald.work
     WHERE id = ANY(@ids::uuid[])
       AND dispatch = (@ns::int[])[array_position(@ids::uuid[], id)]
       AND handed_at IS NOT NULL
       AND (status = 'queued' OR status = 'waiting' AND next_attempt_at <= now() + @tolerance::interval)
       FOR NO KEY UPDATE SKIP LOCKED
), {{claim ready}}
SELECT * FROM answer
