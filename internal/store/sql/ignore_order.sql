-- ignore_order: put deliveries that switched_off.sql listed into their agents' backlogs. They wait for no other
-- delivery from now on. The transaction has locked the agents.
--
-- $1 ids uuid[]
WITH changed AS (
    UPDATE herald.work
       SET status = 'queued', reason = NULL, error = NULL, handed_at = NULL, next_attempt_at = NULL, order_hash = NULL, delays_until = NULL,
           updated_at = now()
     WHERE id = ANY($1) AND status = 'waiting' AND reason = 'behind_earlier'
    RETURNING 1
)
SELECT count(*) FROM changed
