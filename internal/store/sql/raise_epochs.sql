-- raise_epochs: raise the epochs of the known agents in a range of ids, so that workers resolve them again.
--
-- The range comes from an event on the chain and can be huge. So at most the first 10,000 agents are updated; workers
-- resolve the others again when their cached data is too old.
--
-- $1 chain   $2 identity registry   $3 first agent id   $4 last
WITH known AS (
    SELECT agent_id FROM herald.agents
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id BETWEEN $3::text::numeric AND $4::text::numeric
     ORDER BY agent_id LIMIT 10000
       FOR UPDATE
)
UPDATE herald.agents g SET epoch = epoch + 1, updated_at = now()
  FROM known k
 WHERE g.chain_id = $1 AND g.identity_registry = $2 AND g.agent_id = k.agent_id
