-- dispatch: take the next deliveries of several agents from their backlogs, oldest first, until each agent has at most
-- eight dispatched deliveries.
--
-- @chains bigint[], @registries text[], @agents text[]: one element per agent; repeated agents count once
-- @ids uuid[], @claim_nos bigint[]: null, or one claim per agent: dispatch for the agent only if this transaction
--    recorded an outcome for the claim, because a worker that lost its claim must not enqueue tasks
-- @max_dispatched: how many deliveries of an agent may be dispatched (8)
-- @max_responses: how many of them may be responses (2)
--
-- Deliveries of a backfill (bulk) are dispatched only if the agent's backlog has no others, and only up to half of
-- @max_dispatched, so that a new delivery can be dispatched at once. The members of a batch call
-- (claim_members.sql) have no task and do not count: their handed_at is null.
--
-- A dispatched delivery gets the turn of its ordering key, unless its event must be checked first (parts/turn.sql). A
-- delivery that may not be called yet leaves the backlog (behind_earlier). So does a response if @max_responses
-- responses to its agent are dispatched. A next run of this statement dispatches others instead.
--
-- An earlier statement of the transaction has locked the agents. Otherwise two transactions could count the same
-- deliveries, or grant the same turn. Each agent's backlog is read in a LATERAL subquery by the agent's own index, and
-- rows are updated by known ids, so that old statistics cannot lead to another plan.
--
-- Returns the tasks to put into Redis, each with its attempts, its agent, and whether it goes to the lane bulk. A
-- backfill goes there, and a replay before its first attempt. Also returns the deliveries that left the backlog, marked
-- as behind. If the caller fails to enqueue a task, the reconciler finds the delivery by handed_at.
WITH agent AS MATERIALIZED (
    SELECT DISTINCT w.c, w.r, w.a
      FROM unnest(@chains::bigint[], @registries::text[], @agents::text[]::numeric[], @ids::uuid[], @claim_nos::bigint[]) AS w(c, r, a, id, claim_no)
     WHERE @ids::uuid[] IS NULL
        OR EXISTS (SELECT FROM herald.work d WHERE d.id = w.id AND d.claim_no = w.claim_no AND d.status <> 'running' AND d.updated_at = now())
        OR EXISTS (SELECT FROM herald.history d WHERE d.id = w.id AND d.claim_no = w.claim_no AND d.finished_at = now())
), next AS MATERIALIZED (
    SELECT d.*
      FROM agent
     CROSS JOIN LATERAL (
           SELECT bulk FROM herald.work -- usually the backlog is empty
            WHERE chain_id = c AND identity_registry = r AND agent_id = a AND place = 'line'
            ORDER BY bulk LIMIT 1) head
     CROSS JOIN LATERAL (
           SELECT id, chain_id, identity_registry, agent_id, kind, key, order_key, order_seq, order_hash, seq, accepted_at, bound, verified
             FROM herald.work
            WHERE chain_id = c AND identity_registry = r AND agent_id = a AND place = 'line' AND bulk = head.bulk
            ORDER BY seq + 0 -- matches the index work_agent; with plain seq, Postgres might choose work_seq
            LIMIT (SELECT greatest(CASE WHEN head.bulk THEN @max_dispatched::int / 2 ELSE @max_dispatched::int END
                                   - (SELECT count(handed_at) FROM herald.work
                                       WHERE chain_id = c AND identity_registry = r AND agent_id = a AND place = 'out'), 0))
              FOR UPDATE SKIP LOCKED) d
), ordered AS MATERIALIZED (
    SELECT *, {{turn next}} AS order_until FROM next
), ranked AS MATERIALIZED ( -- excess: not the first of its ordering key, or beyond @max_responses
    SELECT id, seq, order_until,
           CASE WHEN order_until IS NOT NULL OR order_hash IS NULL THEN false
                WHEN kind = 'ResponseAppended' THEN nr > @max_responses::int - (SELECT count(*) FILTER (WHERE d.kind = 'ResponseAppended') FROM herald.work d
                         WHERE d.chain_id = o.chain_id AND d.identity_registry = o.identity_registry AND d.agent_id = o.agent_id AND d.place = 'out')
                ELSE nr > 1 AND (bound OR NOT verified) END AS excess
      FROM (SELECT *, row_number() OVER (PARTITION BY chain_id, identity_registry, agent_id, kind = 'ResponseAppended',
                                                      CASE WHEN kind <> 'ResponseAppended' THEN order_hash END,
                                                      kind <> 'ResponseAppended' AND (bound OR NOT verified), order_until IS NULL
                                         ORDER BY CASE WHEN kind <> 'ResponseAppended' THEN order_seq END, kind DESC, seq) AS nr FROM ordered) o
), behind AS (
    UPDATE herald.work d
       SET status = 'waiting', reason = 'behind_earlier', updated_at = now(),
           next_attempt_at = (SELECT coalesce(order_until, now() + interval '10 years') FROM ranked WHERE ranked.id = d.id),
           error = CASE WHEN kind = 'ResponseAppended' THEN 'its feedback, or other responses to this agent, go first'
                        ELSE 'an earlier delivery of this client has not ended: it goes first' END,
           order_hash = CASE WHEN kind = 'ResponseAppended' AND (SELECT excess FROM ranked WHERE ranked.id = d.id) THEN {{responses_hash d}} ELSE {{order_hash d}} END
     WHERE id = ANY(ARRAY(SELECT id FROM ranked WHERE order_until IS NOT NULL OR excess))
    RETURNING id, kind, attempts, chain_id, identity_registry, agent_id::text, seq
), handed AS (
    UPDATE herald.work
       SET dispatch = dispatch + 1, handed_at = now(), updated_at = now(),
           turn = order_hash IS NOT NULL AND kind <> 'ResponseAppended' AND (bound OR NOT verified)
     WHERE id = ANY(ARRAY(SELECT id FROM ranked WHERE order_until IS NULL AND NOT excess))
    RETURNING id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base AS bulk,
              chain_id, identity_registry, agent_id::text, seq
)
SELECT id, dispatch, kind, attempts, bulk, chain_id, identity_registry, agent_id, behind
  FROM (SELECT *, false AS behind FROM handed
        UNION ALL
        SELECT id, 0, kind, attempts, false, chain_id, identity_registry, agent_id, seq, true FROM behind) x
 ORDER BY seq
