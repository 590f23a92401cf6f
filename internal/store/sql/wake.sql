-- wake: put a delivery that waits for the chain into the backlog, so that a new hint is checked at once. Its present
-- task can then not claim it.
--
-- $1 delivery id
UPDATE herald.work
   SET status = 'queued', reason = NULL, error = NULL, next_attempt_at = NULL, handed_at = NULL, updated_at = now()
 WHERE id = $1 AND status = 'waiting' AND reason IN ('not_confirmed', 'chain_unavailable')
