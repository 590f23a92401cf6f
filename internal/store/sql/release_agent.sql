-- release_agent: deliveries that were held because their agent was disabled join its line, if it is enabled. The agent is locked.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 at most this many
UPDATE herald.deliveries SET status = 'queued', reason = NULL, handed_at = NULL, updated_at = now()
 WHERE id IN (SELECT d.id FROM herald.deliveries d
               WHERE d.chain_id = $1 AND d.identity_registry = $2 AND d.agent_id = $3
                 AND d.place = 'held' AND d.reason = 'agent_disabled'
                 AND (SELECT enabled FROM herald.agents WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3)
               ORDER BY d.seq LIMIT $4)
