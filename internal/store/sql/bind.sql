-- bind: replace the job of a claimed delivery by the event that the worker read from the chain. Also give the delivery
-- the turn of its ordering key, if it may be called now (parts/turn.sql). If the event is of another agent, deliveries of
-- the claim's agent that waited for this one are released. The transaction has locked the claim's agent, and inserted the
-- event's agent before, if it has no row yet (make_agents.sql).
--
-- The agent is called only with the job in the row. So a retry never sends another event under the same delivery id.
--
-- @delivery_id, @claim_no
-- @hints: Claim.Hints; if a hint arrived or the follower read the event after the claim, nothing changes
-- @job jsonb, @sealed_headers or null, @source, @trust (of the action), @corrected text[] or null: unchanged
-- @chain_id, @registry (IdentityRegistry), @agent_id, @order_key, @order_seq
-- @contract, @block: where the event is, or '' and 0. If the contract's cursor has not read the block yet, the event is
--   remembered as checked, because a reorg may replace the block before (advance_cursors.sql). The statement does not
--   wait for a remembered event that advance_cursors.sql has locked: that transaction may wait for the agent's lock. A
--   cursor that was not moved for a week remembers nothing: no worker reads its contract, so none would delete the event.
-- Returns whether the agent may be called, or no row if nothing changed.
WITH event AS MATERIALIZED (
    SELECT *, CASE WHEN was_hashed THEN {{order_hash e}} END AS order_hash
      FROM (SELECT id, kind, key, seq, accepted_at, turn, order_hash IS NOT NULL AS was_hashed, @chain_id::bigint AS chain_id, @registry::text AS identity_registry,
                   @agent_id::text::numeric AS agent_id, @order_key::text AS order_key, @order_seq::text::numeric AS order_seq,
                   true AS bound, true AS verified
              FROM herald.work
             WHERE id = @delivery_id AND claim_no = @claim_no AND status = 'running') e
), read AS (
    UPDATE herald.history h
       SET job = @job, secret_headers = @sealed_headers, source = @source, trust = @trust, bound = true,
           corrected = coalesce(@corrected, corrected), identity_registry = @registry, agent_id = @agent_id::text::numeric,
           order_key = @order_key, order_seq = @order_seq::text::numeric, updated_at = now()
      FROM event e
     WHERE h.id = e.id AND h.id = @delivery_id AND h.hints = @hints
    RETURNING e.*
), unread AS MATERIALIZED (
    SELECT id FROM read
     WHERE EXISTS (SELECT FROM herald.chain_cursors WHERE chain_id = @chain_id AND contracts = @contract::text AND backfill = '' AND next_block <= @block::bigint
                      AND updated_at > now() - interval '7 days')
), remembered AS (
    INSERT INTO herald.chain_events (delivery_id, chain_id, contract, block_number, state)
    SELECT id, @chain_id, @contract, @block, 'checked' FROM unread
     WHERE NOT EXISTS (SELECT FROM herald.chain_events WHERE delivery_id = @delivery_id)
    ON CONFLICT DO NOTHING
), remembered_again AS (
    UPDATE herald.chain_events SET block_number = @block
     WHERE delivery_id = ANY(ARRAY(SELECT delivery_id FROM herald.chain_events WHERE delivery_id = @delivery_id AND state = 'checked' FOR UPDATE SKIP LOCKED))
       AND EXISTS (SELECT FROM unread)
), moved AS MATERIALIZED ( -- to the former agent, the delivery has ended
    SELECT w.id, w.kind, w.key, w.chain_id, w.identity_registry, w.agent_id, w.order_key, w.order_hash, w.order_seq, w.turn, now() AS finished_at
      FROM read JOIN herald.work w ON w.id = read.id
     WHERE w.id = @delivery_id AND (w.identity_registry, w.agent_id) <> (@registry::text, @agent_id::text::numeric)
), {{release moved}}
UPDATE herald.work d
   SET bound = true, identity_registry = @registry, agent_id = @agent_id::text::numeric,
       order_key = @order_key, order_seq = @order_seq::text::numeric, order_hash = e.order_hash,
       turn = d.turn OR e.order_hash IS NOT NULL AND d.kind <> 'ResponseAppended' AND {{turn e}} IS NULL,
       delays_until = CASE WHEN d.bound THEN delays_until ELSE {{delays_until e}} END, updated_at = now()
  FROM read e
 WHERE d.id = e.id AND d.id = @delivery_id AND d.claim_no = @claim_no AND d.status = 'running'
RETURNING d.turn OR d.order_hash IS NULL OR d.kind = 'ResponseAppended'
