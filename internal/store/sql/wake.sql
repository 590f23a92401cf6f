-- wake: end a delivery's wait for the position that an older hint names, so that a new one is checked at once. Its task
-- in Redis is void.
--
-- $1 delivery id
UPDATE herald.deliveries
   SET status = 'queued', reason = NULL, error = NULL, next_attempt_at = NULL, handed_at = NULL, updated_at = now()
 WHERE id = $1 AND status = 'waiting' AND reason IN ('not_confirmed', 'chain_unavailable')
