-- due: put waiting deliveries whose wait is over, and that have no task in Redis, into their agents' backlogs, the
-- longest overdue first.
--
-- $1 at most this many
--
-- Several workers run the statement at the same time. It skips the deliveries of agents that another transaction has
-- locked, so it waits for no lock of an agent, and workers choose different deliveries. It locks agents before their
-- deliveries, as lock_agents.sql does. Postgres checks the conditions of the update again if a delivery has changed
-- since it was chosen.
--
-- Returns the agent of each chosen delivery. The caller dispatches from their backlogs in the same transaction.
WITH due AS MATERIALIZED (
    SELECT id, chain_id, identity_registry, agent_id
      FROM herald.work
     WHERE (place || '') = 'waiting' AND next_attempt_at <= now()
     ORDER BY next_attempt_at
     LIMIT 4 * $1::int
), chosen AS MATERIALIZED (
    SELECT due.*
      FROM due
     CROSS JOIN LATERAL (SELECT FROM herald.agents
                          WHERE chain_id = due.chain_id AND identity_registry = due.identity_registry AND agent_id = due.agent_id
                            FOR UPDATE SKIP LOCKED) g
     LIMIT $1::int
), queued AS (
    UPDATE herald.work
       SET status = 'queued', reason = NULL, next_attempt_at = NULL, updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM chosen)) AND status = 'waiting' AND handed_at IS NULL AND next_attempt_at <= now()
)
SELECT chain_id, identity_registry, agent_id::text FROM chosen
