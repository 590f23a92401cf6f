-- dispatch: take an agent's next deliveries for Redis, oldest first, so that at most $4 are pending or running at a
-- time.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 how many an agent may have dispatched (8)
-- $5 delivery id and $6 claim_no, or nulls: dispatch only if this claim was recorded; whoever lost its claim made no room
--    and has nobody to give the tasks to
--
-- An earlier statement of the transaction has locked the agent (lock_agent.sql, lock_agents.sql), or two of these could
-- count the same deliveries. Returns the tasks to put into Redis, each with its attempts
-- and whether it is bulk: a replay that has made none yet. If that fails the reconciler finds them by handed_at.
WITH next AS (
    SELECT id
      FROM herald.deliveries
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'line'
       AND ($5::uuid IS NULL OR EXISTS (SELECT FROM herald.deliveries WHERE id = $5 AND claim_no = $6 AND status <> 'running'))
     ORDER BY seq + 0 -- as the index deliveries_line has it: with seq, that of all deliveries looks as good
     LIMIT (SELECT CASE WHEN EXISTS (SELECT FROM herald.deliveries -- mostly nothing stands in line, and nothing is counted then
                                      WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'line')
                        THEN greatest($4::int - (SELECT count(*) FROM herald.deliveries
                                                  WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'out'), 0)
                        ELSE 0 END)
       FOR UPDATE SKIP LOCKED
), handed AS (
    UPDATE herald.deliveries d
       SET dispatch = d.dispatch + 1, handed_at = now(), updated_at = now()
      FROM next
     WHERE d.id = next.id
    RETURNING d.id, d.dispatch, d.kind, d.attempts, d.replays > 0 AND d.attempts <= d.budget_base AS bulk, d.seq
)
SELECT id, dispatch, kind, attempts, bulk FROM handed ORDER BY seq
