-- lock_agents: lock the agents of a batch in one order, so that two batches cannot deadlock.
--
-- The locks also make the counts of dispatched deliveries exact. The statement is separate: a statement that also
-- changed deliveries would not see the changes that the previous holder of a lock has just committed.
--
-- $1 chain ids bigint[]   $2 identity registries text[]   $3 agent ids text[]   (same length, one element per agent)
--
-- The inner subquery sorts the agents by the primary key. Postgres cannot pull up the LATERAL subquery, because of FOR
-- UPDATE. So it locks one agent after the other by its key, even if the statistics are old.
SELECT count(*) FROM (
    SELECT FROM (SELECT DISTINCT c, r, a::numeric AS a FROM unnest($1::bigint[], $2::text[], $3::text[]) AS w(c, r, a)
                  ORDER BY c, r, a) w
     CROSS JOIN LATERAL (SELECT FROM herald.agents
                          WHERE chain_id = w.c AND identity_registry = w.r AND agent_id = w.a
                            FOR UPDATE) g
) locked
