-- read_event: replace the job of a delivery by the event that the follower read. The transaction has locked the event's
-- agent. If the event is of another agent, the delivery joins that agent's backlog.
--
-- A check that began before does not bind its result, because hints grows.
--
-- @delivery_id, @job jsonb, @sealed_headers or null, @source, @trust
-- @registry (IdentityRegistry), @agent_id, @order_key, @order_seq
UPDATE herald.deliveries
   SET job = @job, secret_headers = @sealed_headers, source = @source, trust = @trust, bound = true, hints = hints + 1,
       handed_at = CASE WHEN status <> 'queued' OR (identity_registry, agent_id) = (@registry, @agent_id::text::numeric) THEN handed_at END,
       identity_registry = @registry, agent_id = @agent_id::text::numeric, order_key = @order_key,
       order_seq = @order_seq::text::numeric, updated_at = now()
 WHERE id = @delivery_id
