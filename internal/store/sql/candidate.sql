-- candidate: store another job of a delivery's key as a candidate, unless a candidate already names the same event.
--
-- An earlier statement of the transaction has locked the delivery, so that this one sees all its candidates.
--
-- @delivery_id, @transaction_hash or '', @event and @action (their hashes), @registry (IdentityRegistry), @agent_id,
--   @order_key, @order_seq,
-- @job jsonb, @sealed_headers or null
--
-- Returns whether a candidate has another action: only the chain can decide which of the actions is delivered. The
-- statement compares with "<" and with ">", because "<>" would read every candidate when all of them have the same
-- action.
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
