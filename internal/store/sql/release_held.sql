-- release_held: put deliveries of one agent that are held for one of some reasons into its backlog, oldest first, those
-- of a backfill last. The transaction has locked the agent.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 at most this many   $5 the reasons text[]
-- $6 the agent's epoch in a claim: release only if it was raised since, as storing a credential does; -1: always
-- $7 delivery id, $8 claim_no: release only if the transaction recorded that this claim is held; null: always
--
-- Deliveries held because the agent was disabled are released only if the agent is enabled now. Returns the tasks with
-- which the deliveries were held. The agent may have very many held deliveries, so the statement reads none of them if
-- none may be released.
UPDATE herald.work SET status = 'queued', reason = NULL, handed_at = NULL, updated_at = now(),
       delays_until = CASE WHEN NOT called THEN {{delays_until work}} END -- as if it had just been accepted
 WHERE id = ANY(ARRAY(
       SELECT d.id
         FROM (SELECT CASE WHEN enabled THEN $5::text[] ELSE array_remove($5::text[], 'agent_disabled') END AS reasons
                 FROM herald.agents
                WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND epoch > $6::bigint OFFSET 0) g
        CROSS JOIN LATERAL (
              SELECT id FROM herald.work
               WHERE cardinality(g.reasons) > 0
                 AND chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'held' AND reason = ANY(g.reasons)
                 AND ($7::uuid IS NULL OR (SELECT true FROM herald.work WHERE id = $7 AND claim_no = $8::bigint AND status = 'held'))
               ORDER BY bulk, seq + 0 -- the order of the index work_agent
               LIMIT $4) d))
RETURNING id, dispatch
