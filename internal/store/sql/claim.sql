-- claim: claim deliveries for their tasks, in one statement and one commit. parts/claim.sql makes the claims.
--
-- @ids uuid[], each once   @ns int[]: the tasks' dispatch counters   @lease, @recent (intervals)
-- @tolerance (interval): also claims waiting rows, up to this time before they are due; null: queued rows only, because
--   yield.sql must decide about a waiting row first
--
-- A row is claimed only if its task is the newest one (dispatch = n), it is still dispatched (handed_at is set), and it
-- is queued or due. The task of a row that went back to the backlog may still be in Redis, but the row's handed_at is
-- null.
--
-- The result omits rows that are refused or that another transaction has locked. So the statement never waits for a
-- lock, and cannot deadlock with a transaction that locks agents first. A caller that must not skip a locked row locks
-- it before.
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
