-- wake: put a delivery that waits for one of some reasons into the backlog, because a new hint is checked at once, or
-- because its event was read. Its present task can then not claim it.
--
-- $1 delivery id   $2 the reasons text[]
UPDATE herald.work
   SET status = 'queued', reason = NULL, error = NULL, next_attempt_at = NULL, handed_at = NULL, updated_at = now()
 WHERE id = $1 AND status = 'waiting' AND reason = ANY($2::text[])
