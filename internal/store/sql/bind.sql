-- bind: replace the job of a claimed delivery by the event that the worker read from the chain.
--
-- The agent is called with the row's job only, so a retry never sends another event under the same delivery id.
--
-- @delivery_id, @claim_no, @hints: the claim's number of hints; a newer hint or reading prevents the change
-- @job jsonb, @sealed_headers or null, @source, @trust (of the action), @corrected text[] or null: unchanged
-- @chain_id, @registry (IdentityRegistry), @agent_id, @order_key, @order_seq
WITH agent AS (
    INSERT INTO herald.agents (chain_id, identity_registry, agent_id)
    SELECT @chain_id::bigint, @registry::text, @agent_id::text::numeric
     WHERE NOT EXISTS (SELECT FROM herald.agents WHERE chain_id = @chain_id AND identity_registry = @registry AND agent_id = @agent_id::text::numeric)
    ON CONFLICT DO NOTHING
)
UPDATE herald.deliveries
   SET job = @job, secret_headers = @sealed_headers, source = @source, trust = @trust, bound = true,
       corrected = coalesce(@corrected, corrected), identity_registry = @registry, agent_id = @agent_id::text::numeric,
       order_key = @order_key, order_seq = @order_seq::text::numeric, updated_at = now()
 WHERE id = @delivery_id AND claim_no = @claim_no AND status = 'running' AND hints = @hints
RETURNING true
