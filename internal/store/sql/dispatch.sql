-- dispatch: dispatch an agent's next deliveries, oldest first, so that at most $4 are pending or running.
--
-- Deliveries of a backfill (bulk) are dispatched only when the agent has no other backlog, and fill half of the slots
-- at most, so that a new delivery finds a free slot. Nothing is dispatched before agents.line_held_until.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 how many deliveries of an agent may be dispatched (8)
-- $5 delivery id and $6 claim_no: dispatch only if this claim was recorded; a worker that lost its claim freed no slot
--    and enqueues no tasks
-- $7 true: deliveries of one ordering key are sent in order: a delivery that must wait for another leaves the backlog
--    (behind_earlier), and the next call of this statement fills its slot
--
-- Followers in another delivery's call (claim_followers.sql) have no task and do not count: their handed_at is null.
--
-- An earlier statement of the transaction has locked the agent (lock_agent.sql); otherwise two transactions could count
-- the same deliveries. Returns the tasks to put into Redis, each with its attempts and whether it goes to the lane
-- bulk: deliveries of a backfill do, and replays before their first attempt. If the caller fails to enqueue a task, the
-- reconciler finds the delivery by handed_at.
WITH head AS MATERIALIZED ( -- usually the backlog is empty; then nothing is counted
    SELECT bulk FROM herald.deliveries
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'line'
     ORDER BY bulk LIMIT 1
), next AS MATERIALIZED (
    SELECT id, kind, key, order_key, order_seq, seq
      FROM herald.deliveries
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'line' AND bulk = (SELECT bulk FROM head)
       AND EXISTS (SELECT FROM herald.deliveries WHERE id = $5 AND claim_no = $6 AND status <> 'running')
     ORDER BY seq + 0 -- matches the index deliveries_next; with plain seq, Postgres might choose deliveries_seq
     LIMIT (SELECT greatest(CASE WHEN (SELECT line_held_until > now() FROM herald.agents
                                         WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3) THEN 0
                                 WHEN bulk THEN $4::int / 2 ELSE $4::int END
                            - (SELECT count(handed_at) FROM herald.deliveries
                                WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'out'), 0) FROM head)
       FOR UPDATE SKIP LOCKED
), ordered AS MATERIALIZED (
    SELECT *, CASE WHEN $7::boolean THEN herald.order_wait(id, $1, $2, $3, kind, key, order_key, order_seq) END AS order_until
      FROM next
), decided AS MATERIALIZED ( -- of several ready deliveries of one ordering key, only the oldest is dispatched
    SELECT *, CASE WHEN $7::boolean AND order_until IS NULL
                        AND row_number() OVER (PARTITION BY order_key, order_until IS NULL ORDER BY seq) > 1
                        AND key NOT LIKE '%#Retraction@%'
                        AND NOT herald.ignores_order($1, $2, $3) THEN now() + interval '10 years'
                   ELSE order_until END AS recheck_at
      FROM ordered
), behind AS (
    UPDATE herald.deliveries d
       SET status = 'waiting', reason = 'behind_earlier', error = 'an earlier delivery of this client has not ended: it goes first',
           next_attempt_at = (SELECT recheck_at FROM decided WHERE decided.id = d.id),
           awaits_feedback = herald.awaits_feedback(kind, key, order_key, order_seq), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM decided WHERE recheck_at IS NOT NULL))
), handed AS (
    UPDATE herald.deliveries d
       SET dispatch = d.dispatch + 1, handed_at = now(), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM decided WHERE recheck_at IS NULL))
    RETURNING d.id, d.dispatch, d.kind, d.attempts, d.bulk OR d.replays > 0 AND d.attempts <= d.budget_base AS bulk, d.seq
)
SELECT id, dispatch, kind, attempts, bulk FROM handed ORDER BY seq
