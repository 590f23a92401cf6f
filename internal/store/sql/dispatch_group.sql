-- dispatch_group: dispatch the next deliveries of the agents whose outcomes record_group.sql has recorded.
--
-- For each agent it does what dispatch.sql does, so that at most @max_dispatched are pending or running.
--
-- @ids uuid[], @claim_nos bigint[]: the claims that record_group.sql got, in the same transaction
-- @max_dispatched: how many deliveries of an agent may be dispatched (8)
-- @strict: deliveries of one ordering key are sent in order (dispatch.sql)
--
-- Only claims that record_group.sql recorded count (their updated_at is this transaction's now()): a worker that lost
-- its claim freed no slot and enqueues no tasks.
--
-- An earlier statement of the transaction has locked the agents. Each agent's backlog is read in a LATERAL subquery by
-- the agent's own index, and rows are updated by ids that are known by then, so that old statistics cannot lead to
-- another plan. Returns the tasks to put into Redis as dispatch.sql does, each with its agent.
WITH agent AS MATERIALIZED (
    SELECT DISTINCT d.*
      FROM unnest(@ids::uuid[], @claim_nos::bigint[]) AS w(id, claim_no)
     CROSS JOIN LATERAL (SELECT chain_id, identity_registry, agent_id FROM herald.deliveries
                          WHERE id = w.id AND claim_no = w.claim_no AND status <> 'running' AND updated_at = now()
                         OFFSET 0) d
), next AS MATERIALIZED (
    SELECT a.chain_id AS c, a.identity_registry AS r, a.agent_id AS a, d.*
      FROM agent a
     CROSS JOIN LATERAL (
           SELECT bulk FROM herald.deliveries -- usually the backlog is empty
            WHERE chain_id = a.chain_id AND identity_registry = a.identity_registry AND agent_id = a.agent_id
              AND place = 'line'
            ORDER BY bulk LIMIT 1) head
     CROSS JOIN LATERAL (
           SELECT id, kind, key, order_key, order_seq, seq FROM herald.deliveries
            WHERE chain_id = a.chain_id AND identity_registry = a.identity_registry AND agent_id = a.agent_id
              AND place = 'line' AND bulk = head.bulk
            ORDER BY seq + 0
            LIMIT (SELECT greatest(CASE WHEN (SELECT line_held_until > now() FROM herald.agents
                                                WHERE chain_id = a.chain_id AND identity_registry = a.identity_registry
                                                  AND agent_id = a.agent_id) THEN 0
                                        WHEN head.bulk THEN @max_dispatched::int / 2 ELSE @max_dispatched::int END
                                   - (SELECT count(handed_at) FROM herald.deliveries
                                       WHERE chain_id = a.chain_id AND identity_registry = a.identity_registry
                                         AND agent_id = a.agent_id AND place = 'out'), 0))
              FOR UPDATE SKIP LOCKED) d
), ordered AS MATERIALIZED (
    SELECT *, CASE WHEN @strict::boolean THEN herald.order_wait(id, c, r, a, kind, key, order_key, order_seq) END AS order_until
      FROM next
), decided AS MATERIALIZED ( -- of several ready deliveries of one ordering key, only the oldest is dispatched
    SELECT *, CASE WHEN @strict::boolean AND order_until IS NULL
                        AND row_number() OVER (PARTITION BY c, r, a, order_key, order_until IS NULL ORDER BY seq) > 1
                        AND key NOT LIKE '%#Retraction@%'
                        AND NOT herald.ignores_order(c, r, a) THEN now() + interval '10 years'
                   ELSE order_until END AS recheck_at
      FROM ordered
), behind AS (
    UPDATE herald.deliveries d
       SET status = 'waiting', reason = 'behind_earlier', error = 'an earlier delivery of this client has not ended: it goes first',
           next_attempt_at = (SELECT recheck_at FROM decided WHERE decided.id = d.id),
           awaits_feedback = herald.awaits_feedback(kind, key, order_key, order_seq), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM decided WHERE recheck_at IS NOT NULL))
), handed AS (
    UPDATE herald.deliveries
       SET dispatch = dispatch + 1, handed_at = now(), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM decided WHERE recheck_at IS NULL))
    RETURNING id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base AS bulk,
              chain_id, identity_registry, agent_id::text, seq
)
SELECT id, dispatch, kind, attempts, bulk, chain_id, identity_registry, agent_id FROM handed ORDER BY seq
