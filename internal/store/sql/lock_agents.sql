-- lock_agents: lock the agents of a batch in one order, so that no two batches can deadlock and what is dispatched is
-- counted exactly. A statement of its own: one that also changed the rows would not see those another batch had just
-- committed.
--
-- $1 chain ids bigint[]   $2 identity registries text[]   $3 agent ids text[]   (same length, one element an agent)
--
-- The order is that of the primary key: the subquery sorts, and the LATERAL one, which cannot be pulled up, locks one
-- agent after the other by its key, whatever the statistics say.
SELECT count(*) FROM (
    SELECT FROM (SELECT DISTINCT c, r, a::numeric AS a FROM unnest($1::bigint[], $2::text[], $3::text[]) AS w(c, r, a)
                  ORDER BY c, r, a) w
     CROSS JOIN LATERAL (SELECT FROM herald.agents
                          WHERE chain_id = w.c AND identity_registry = w.r AND agent_id = w.a
                            FOR UPDATE) g
) locked
