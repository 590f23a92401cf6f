-- read_event: replace the job of a delivery by the event that the chain follower read. If the event belongs to another
-- agent, the delivery joins that agent's backlog. The transaction has locked the event's agent.
--
-- The statement increases hints. So a worker whose check began before cannot bind the delivery to the result
-- (bind.sql).
--
-- @delivery_id, @job jsonb, @sealed_headers or null, @source, @trust
-- @registry (IdentityRegistry), @agent_id, @order_key, @order_seq
WITH read AS (
    UPDATE herald.history
       SET job = @job, secret_headers = @sealed_headers, source = @source, trust = @trust, bound = true, hints = hints + 1,
           identity_registry = @registry, agent_id = @agent_id::text::numeric, order_key = @order_key,
           order_seq = @order_seq::text::numeric, updated_at = now()
     WHERE id = @delivery_id
    RETURNING id, kind, identity_registry, agent_id, order_key, order_seq
)
UPDATE herald.work w
   SET handed_at = CASE WHEN status <> 'queued' OR (w.identity_registry, w.agent_id) = (n.identity_registry, n.agent_id) THEN handed_at END,
       identity_registry = n.identity_registry, agent_id = n.agent_id, order_key = n.order_key, order_seq = n.order_seq, bound = true,
       order_hash = CASE WHEN order_hash IS NOT NULL THEN {{order_hash n}} END,
       delays_until = CASE WHEN delays_until IS NOT NULL AND NOT bound THEN timestamptz 'infinity' ELSE delays_until END, updated_at = now()
  FROM read n
 WHERE w.id = n.id AND w.id = @delivery_id
