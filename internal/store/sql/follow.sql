-- follow: put deliveries that waited for another of their ordering key (behind_earlier) into their agents' backlogs.
--
-- The transaction has locked the agents.
--
-- $1 ids uuid[]
WITH changed AS (
    UPDATE herald.deliveries
       SET status = 'queued', reason = NULL, error = NULL, next_attempt_at = NULL, updated_at = now()
     WHERE id = ANY($1) AND status = 'waiting' AND reason = 'behind_earlier'
    RETURNING 1
)
SELECT count(*) FROM changed
