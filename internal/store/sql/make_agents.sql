-- make_agents: insert the agents of a batch that have no row yet. Runs before lock_agents.sql, in the same transaction.
--
-- $1 chain ids bigint[]   $2 identity registries text[]   $3 agent ids text[]   (same length, one element per agent)
INSERT INTO herald.agents (chain_id, identity_registry, agent_id)
SELECT DISTINCT c, r, a::numeric FROM unnest($1::bigint[], $2::text[], $3::text[]) AS w(c, r, a) ORDER BY 1, 2, 3
ON CONFLICT DO NOTHING
