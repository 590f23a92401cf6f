-- dispatch: hand out an agent's next deliveries, oldest first, so that at most $4 are pending or running at a time.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 how many an agent may have handed out (8)
--
-- The caller holds the agent's row lock (totals.sql, or lock_agents.sql at intake), or two of these could count the same
-- free places. Returns the tasks to put into Redis; if that fails the sweep finds them by handed_at.
WITH next AS (
    SELECT id
      FROM herald.deliveries
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND status = 'queued' AND handed_at IS NULL
     ORDER BY seq
     LIMIT (SELECT greatest($4::int - count(*), 0)
              FROM herald.deliveries
             WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3
               AND status IN ('queued', 'running') AND handed_at IS NOT NULL)
       FOR UPDATE SKIP LOCKED
)
UPDATE herald.deliveries d
   SET dispatch = d.dispatch + 1, handed_at = now(), updated_at = now()
  FROM next
 WHERE d.id = next.id
RETURNING d.id, d.dispatch, d.kind, d.attempts, now()
