-- lock_agents: lock the agents of a batch in one order, so that intakes cannot deadlock and what is dispatched is
-- counted exactly. A statement of its own: one that also made the rows would not see those another intake had just
-- committed.
--
-- $1 chain ids bigint[]   $2 identity registries text[]   $3 agent ids text[]   (same length, one element an agent)
SELECT count(*) FROM (
    SELECT FROM herald.agents g
      JOIN (SELECT DISTINCT c, r, a::numeric AS a FROM unnest($1::bigint[], $2::text[], $3::text[]) AS w(c, r, a)) w
        ON g.chain_id = w.c AND g.identity_registry = w.r AND g.agent_id = w.a
     ORDER BY g.chain_id, g.identity_registry, g.agent_id
       FOR UPDATE OF g
) locked
