-- reopen: queue a known delivery anew after a reorg cancelled it or its event could not be found, if it was never
-- called, or the event was read off the chain. It came back in another block, so the job (block, transaction) is taken
-- from the new intake. Its age, for expiry, and its budget begin again; the attempts' numbers go on. The key guards
-- against somebody who gave the row another one meanwhile.
--
-- $1 id   $2 key   $3 job jsonb   $4 sealed headers or null   $5 order seq   $6 identity registry
-- $7 true: read off the chain
UPDATE herald.deliveries
   SET status = 'queued', reason = NULL, error = NULL, budget_base = attempts, fetch_failures = 0, handed_at = NULL, next_attempt_at = NULL,
       job = $3, secret_headers = $4, order_seq = $5::text::numeric, identity_registry = $6, accepted_at = now(), finished_at = NULL, updated_at = now(),
       holds_until = CASE WHEN herald.has_order(kind) THEN timestamptz 'infinity' END
 WHERE id = $1
   AND key = $2
   AND (NOT called OR $7)
   AND ((status = 'cancelled' AND reason = 'reorg') OR (status = 'rejected' AND reason = 'event_not_found'))
RETURNING id
