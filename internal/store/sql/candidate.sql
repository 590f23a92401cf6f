-- candidate: a job of the same key joins the line behind a delivery, unless one that says the same event stands
-- there. The delivery is locked by an earlier statement of the transaction, so that this one sees the whole line.
--
-- @delivery_id, @transaction_hash or '', @event and @action (their sums), @registry (IdentityRegistry), @agent_id,
--   @order_key, @order_seq,
-- @job jsonb, @sealed_headers or null
--
-- Returns whether one in the line has another action: which of them is delivered, the chain says later. That is asked in two ranges, as
-- "another" would read the whole line when all of it has one action.
WITH joined AS (
    INSERT INTO herald.candidates (delivery_id, rank, transaction_hash, event, action, identity_registry, agent_id, order_key, order_seq, job,
                                   secret_headers)
    SELECT @delivery_id, 1 + greatest(d.candidate_rank, (SELECT max(rank) FROM herald.candidates WHERE delivery_id = @delivery_id)),
           @transaction_hash::text, @event::bytea, @action::bytea, @registry::text, @agent_id::text::numeric, @order_key::text,
           @order_seq::text::numeric, @job::jsonb, @sealed_headers::bytea
      FROM herald.deliveries d WHERE d.id = @delivery_id
    ON CONFLICT (delivery_id, event) DO NOTHING
)
SELECT EXISTS (SELECT FROM herald.candidates WHERE delivery_id = @delivery_id AND action < @action)
    OR EXISTS (SELECT FROM herald.candidates WHERE delivery_id = @delivery_id AND action > @action)
