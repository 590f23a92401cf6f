-- withdraw: cancel a retraction because what it takes back is on the chain again, unless its agent may know of it. The agent is locked.
--
-- $1 delivery id
-- Returns whether the agent was or may have been called; no row: there is no such retraction.
WITH cancelled AS (
    UPDATE herald.deliveries
       SET status = 'cancelled', reason = 'reorg', error = NULL, handed_at = NULL, lease_until = NULL, next_attempt_at = NULL,
           finished_at = now(), updated_at = now()
     WHERE id = $1 AND status IN ('queued', 'waiting', 'held')
    RETURNING called
)
SELECT coalesce((SELECT called FROM cancelled), d.called OR d.status = 'running')
    OR EXISTS (SELECT FROM herald.attempts a WHERE a.delivery_id = d.id AND a.outcome IS NULL)
  FROM herald.deliveries d
 WHERE d.id = $1
