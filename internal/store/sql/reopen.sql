-- reopen: queue a known delivery anew after a reorg cancelled it or its event could not be found, if it was never called.
-- The event came back in another block, so the job (block, transaction) is taken from the new intake.
--
-- $1 id   $2 job jsonb   $3 sealed headers or null
UPDATE herald.deliveries
   SET status = 'queued', reason = NULL, error = NULL, attempts = 0, handed_at = NULL, next_attempt_at = NULL,
       job = $2, secret_headers = $3, finished_at = NULL, updated_at = now()
 WHERE id = $1
   AND NOT called
   AND ((status = 'cancelled' AND reason = 'reorg') OR (status = 'rejected' AND reason = 'event_not_found'))
RETURNING id
