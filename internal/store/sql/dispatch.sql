-- dispatch: take an agent's next deliveries for Redis, oldest first, so that at most $4 are pending or running at a
-- time. Those of a backfill (bulk) come when no other one stands in line, and may have half of the places: one that
-- comes now finds a place. While the line is held (agents.line_held_until) nothing is taken.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 how many an agent may have dispatched (8)
-- $5 delivery id and $6 claim_no: dispatch only if this claim was recorded; whoever lost its claim made no room
--    and has nobody to give the tasks to
-- $7 true: deliveries of one client keep their order: what must wait for another one leaves the line (behind_earlier),
--    and its place is taken by the next call
--
-- What goes in another one's call (claim_followers.sql) has no task, and does not count: handed_at is null.
--
-- An earlier statement of the transaction has locked the agent (lock_agent.sql), or two of these could
-- count the same deliveries. Returns the tasks to put into Redis, each with its attempts and whether it goes to the lane
-- bulk: those of a backfill, and a replay that has made none yet. If that fails the reconciler finds them by handed_at.
WITH head AS MATERIALIZED ( -- mostly nothing stands in line, and nothing is counted then
    SELECT bulk FROM herald.deliveries
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'line'
     ORDER BY bulk LIMIT 1
), next AS MATERIALIZED (
    SELECT id, kind, key, order_key, order_seq, seq
      FROM herald.deliveries
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'line' AND bulk = (SELECT bulk FROM head)
       AND EXISTS (SELECT FROM herald.deliveries WHERE id = $5 AND claim_no = $6 AND status <> 'running')
     ORDER BY seq + 0 -- as the index deliveries_next has it: with seq, that of all deliveries looks as good
     LIMIT (SELECT greatest(CASE WHEN (SELECT line_held_until > now() FROM herald.agents
                                         WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3) THEN 0
                                 WHEN bulk THEN $4::int / 2 ELSE $4::int END
                            - (SELECT count(handed_at) FROM herald.deliveries
                                WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'out'), 0) FROM head)
       FOR UPDATE SKIP LOCKED
), asked AS MATERIALIZED (
    SELECT *, CASE WHEN $7::boolean THEN herald.order_wait(id, $1, $2, $3, kind, key, order_key, order_seq) END AS own
      FROM next
), judged AS MATERIALIZED ( -- of several that may go, and of which one may, the eldest
    SELECT *, CASE WHEN $7::boolean AND own IS NULL AND row_number() OVER (PARTITION BY order_key, own IS NULL ORDER BY seq) > 1 AND key NOT LIKE '%#Retraction@%'
                        AND NOT herald.ignores_order($1, $2, $3) THEN now() + interval '10 years'
                   ELSE own END AS look
      FROM asked
), behind AS (
    UPDATE herald.deliveries d
       SET status = 'waiting', reason = 'behind_earlier', error = 'an earlier delivery of this client has not ended: it goes first',
           next_attempt_at = (SELECT look FROM judged WHERE judged.id = d.id),
           awaits_feedback = herald.awaits_feedback(kind, key, order_key, order_seq), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM judged WHERE look IS NOT NULL))
), handed AS (
    UPDATE herald.deliveries d
       SET dispatch = d.dispatch + 1, handed_at = now(), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM judged WHERE look IS NULL))
    RETURNING d.id, d.dispatch, d.kind, d.attempts, d.bulk OR d.replays > 0 AND d.attempts <= d.budget_base AS bulk, d.seq
)
SELECT id, dispatch, kind, attempts, bulk FROM handed ORDER BY seq
