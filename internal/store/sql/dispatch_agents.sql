-- dispatch_agents: take the next deliveries of several agents, for Redis: of each what dispatch.sql takes.
--
-- $1 chain ids bigint[]   $2 identity registries text[]   $3 agent ids text[]   (same length, one element an agent)
-- $4 how many an agent may have dispatched (8)
--
-- An earlier statement of the transaction has locked the agents. Every agent's line is read as in dispatch_group.sql,
-- so that no statistics can make another plan of that. Returns what that one does.
WITH next AS MATERIALIZED (
    SELECT d.id
      FROM unnest($1::bigint[], $2::text[], $3::text[]::numeric[]) AS a(c, r, a)
     CROSS JOIN LATERAL (
           SELECT bulk FROM herald.deliveries -- mostly nothing stands in line
            WHERE chain_id = a.c AND identity_registry = a.r AND agent_id = a.a AND place = 'line'
            ORDER BY bulk LIMIT 1) head
     CROSS JOIN LATERAL (
           SELECT id FROM herald.deliveries
            WHERE chain_id = a.c AND identity_registry = a.r AND agent_id = a.a AND place = 'line' AND bulk = head.bulk
            ORDER BY seq + 0
            LIMIT (SELECT greatest($4::int / CASE WHEN head.bulk THEN 2 ELSE 1 END
                                   - (SELECT count(*) FROM herald.deliveries
                                       WHERE chain_id = a.c AND identity_registry = a.r AND agent_id = a.a
                                         AND place = 'out'), 0))
              FOR UPDATE SKIP LOCKED) d
), handed AS (
    UPDATE herald.deliveries
       SET dispatch = dispatch + 1, handed_at = now(), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM next))
    RETURNING id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base AS bulk,
              chain_id, identity_registry, agent_id::text, seq
)
SELECT id, dispatch, kind, attempts, bulk, chain_id, identity_registry, agent_id FROM handed ORDER BY seq
