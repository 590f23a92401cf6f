-- reopen: queue a delivery again whose event has returned.
--
-- A reorg had cancelled the delivery, or its event had not been found. The agent must not have been called, unless the
-- event was read off the chain. The event is in another block now, so block and transaction come from the new job. The
-- age for the expiry and the budget begin again; the numbers of attempts continue. The condition on the key guards
-- against a transaction that has given the row another key.
--
-- $1 id   $2 key   $3 job jsonb   $4 sealed headers or null   $5 order seq   $6 identity registry
-- $7 true: the event was read off the chain
UPDATE herald.deliveries
   SET status = 'queued', reason = NULL, error = NULL, budget_base = attempts, fetch_failures = 0, handed_at = NULL, next_attempt_at = NULL,
       job = $3, secret_headers = $4, order_seq = $5::text::numeric, identity_registry = $6, accepted_at = now(), finished_at = NULL, updated_at = now(),
       holds_until = CASE WHEN herald.has_order(kind) THEN timestamptz 'infinity' END
 WHERE id = $1
   AND key = $2
   AND (NOT called OR $7)
   AND ((status = 'cancelled' AND reason = 'reorg') OR (status = 'rejected' AND reason = 'event_not_found'))
RETURNING id
