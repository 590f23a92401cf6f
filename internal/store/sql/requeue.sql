-- requeue: put the deliveries that due.sql listed into their agents' backlogs, unless they have changed. The
-- transaction has locked the agents.
--
-- $1 ids uuid[]
WITH changed AS (
    UPDATE herald.work
       SET status = 'queued', reason = NULL, next_attempt_at = NULL, updated_at = now()
     WHERE id = ANY($1) AND status = 'waiting' AND handed_at IS NULL AND next_attempt_at <= now()
    RETURNING 1
)
SELECT count(*) FROM changed
