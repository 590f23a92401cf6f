-- dispatch: take an agent's next deliveries for Redis, oldest first, so that at most $4 are pending or running at a
-- time. Those of a backfill (bulk) come when no other one stands in line, and may have half of the places: one that
-- comes now finds a place.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 how many an agent may have dispatched (8)
-- $5 delivery id and $6 claim_no: dispatch only if this claim was recorded; whoever lost its claim made no room
--    and has nobody to give the tasks to
--
-- An earlier statement of the transaction has locked the agent (lock_agent.sql), or two of these could
-- count the same deliveries. Returns the tasks to put into Redis, each with its attempts and whether it goes to the lane
-- bulk: those of a backfill, and a replay that has made none yet. If that fails the reconciler finds them by handed_at.
WITH head AS MATERIALIZED ( -- mostly nothing stands in line, and nothing is counted then
    SELECT bulk FROM herald.deliveries
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'line'
     ORDER BY bulk LIMIT 1
), next AS (
    SELECT id
      FROM herald.deliveries
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'line' AND bulk = (SELECT bulk FROM head)
       AND EXISTS (SELECT FROM herald.deliveries WHERE id = $5 AND claim_no = $6 AND status <> 'running')
     ORDER BY seq + 0 -- as the index deliveries_next has it: with seq, that of all deliveries looks as good
     LIMIT (SELECT greatest($4::int / CASE WHEN bulk THEN 2 ELSE 1 END
                            - (SELECT count(*) FROM herald.deliveries
                                WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'out'), 0) FROM head)
       FOR UPDATE SKIP LOCKED
), handed AS (
    UPDATE herald.deliveries d
       SET dispatch = d.dispatch + 1, handed_at = now(), updated_at = now()
      FROM next
     WHERE d.id = next.id
    RETURNING d.id, d.dispatch, d.kind, d.attempts, d.bulk OR d.replays > 0 AND d.attempts <= d.budget_base AS bulk, d.seq
)
SELECT id, dispatch, kind, attempts, bulk FROM handed ORDER BY seq
