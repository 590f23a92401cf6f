-- reopen: queue a delivery again whose event has returned, or may be where another job says.
--
-- A reorg had cancelled the delivery, its event had not been found, or its job could not be read. The agent must not have been called, unless the
-- event was read off the chain. The age for the expiry and the budget begin again; the numbers of attempts continue.
-- The condition on the key guards against a transaction that has given the row another key.
--
-- @delivery_id, @key, @job jsonb, @sealed_headers or null, @source, @trust
-- @registry (IdentityRegistry), @agent_id, @order_key, @order_seq
-- @read  true: the event was read off the chain
UPDATE herald.deliveries
   SET status = 'queued', reason = NULL, error = NULL, budget_base = attempts, fetch_failures = 0, handed_at = NULL, next_attempt_at = NULL,
       job = @job, secret_headers = @sealed_headers, source = @source, trust = @trust, bound = @read, hints = hints + 1,
       identity_registry = @registry, agent_id = @agent_id::text::numeric, order_key = @order_key, order_seq = @order_seq::text::numeric,
       accepted_at = now(), finished_at = NULL, updated_at = now(),
       holds_until = CASE WHEN herald.has_order(kind) THEN timestamptz 'infinity' END
 WHERE id = @delivery_id
   AND key = @key
   AND (NOT called OR @read::boolean)
   AND ((status = 'cancelled' AND reason = 'reorg') OR (status = 'rejected' AND reason IN ('event_not_found', 'invalid_job')))
RETURNING id
