-- follow: deliveries that waited behind another one of their client join their agents' lines. The agents are locked.
--
-- $1 ids uuid[]
WITH changed AS (
    UPDATE herald.deliveries
       SET status = 'queued', reason = NULL, error = NULL, next_attempt_at = NULL, updated_at = now()
     WHERE id = ANY($1) AND status = 'waiting' AND reason = 'behind_earlier'
    RETURNING 1
)
SELECT count(*) FROM changed
