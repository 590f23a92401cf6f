-- reopen: queue an ended delivery again with another job, because its event has returned to the chain, or because the
-- job names a position where the event may be.
--
-- The delivery was cancelled by a reorg or filtered, its event was not found, or its job cannot be parsed. Its agent must not have
-- been called, unless the event was read from the chain. The age and the budget begin again; the numbers of attempts
-- continue. Nothing changes if another transaction has changed the delivery or its key.
--
-- @delivery_id, @key, @job jsonb, @sealed_headers or null, @source, @trust
-- @registry (IdentityRegistry), @agent_id, @order_key, @order_seq
-- @read  true: the event was read from the chain
WITH reopened AS (
    UPDATE herald.history h
       SET status = 'queued', reason = NULL, error = NULL, budget_base = attempts, fetch_failures = 0, kept = true,
           job = @job, secret_headers = @sealed_headers, source = @source, trust = @trust, bound = @read, hints = hints + 1,
           identity_registry = @registry, agent_id = @agent_id::text::numeric, order_key = @order_key, order_seq = @order_seq::text::numeric,
           order_hash = CASE WHEN order_hash IS NOT NULL THEN {{order_hash n}} END,
           accepted_at = now(), finished_at = NULL, updated_at = now()
      FROM (SELECT kind, @registry::text AS identity_registry, @order_key::text AS order_key, @order_seq::text::numeric AS order_seq
              FROM herald.history WHERE id = @delivery_id) n
     WHERE id = @delivery_id
       AND key = @key
       AND (NOT called OR @read::boolean)
       AND ((status = 'cancelled' AND reason = 'reorg') OR (status = 'skipped' AND reason = 'filtered') OR (status = 'rejected' AND reason IN ('event_not_found', 'invalid_job')))
    RETURNING h.*
)
{{reopen reopened}}
