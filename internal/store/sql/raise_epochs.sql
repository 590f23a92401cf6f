-- raise_epochs: have those agents resolved anew that are known and whose ids lie in a range, which is a stranger's: 10,000 of them at
-- most, the first ones, so that the statement is bounded. The others are resolved anew when what is known of them is too old.
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
