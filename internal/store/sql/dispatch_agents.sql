-- dispatch_agents: dispatch the next deliveries of several agents, for each agent as dispatch.sql does.
--
-- $1 chain ids bigint[]   $2 identity registries text[]   $3 agent ids text[]   (same length, one element per agent)
-- $4 how many deliveries of an agent may be dispatched (8)
-- $5 true: deliveries of one ordering key are sent in order (dispatch.sql)
--
-- An earlier statement of the transaction has locked the agents. Each agent's backlog is read by LATERAL subqueries, as
-- in dispatch_group.sql, so that old statistics cannot lead to another plan. Returns the rows of dispatch_group.sql,
-- and also the deliveries that left the backlog for behind_earlier, marked as behind: after those, the agent may have
-- free slots.
WITH next AS MATERIALIZED (
    SELECT a.c, a.r, a.a, d.*
      FROM unnest($1::bigint[], $2::text[], $3::text[]::numeric[]) AS a(c, r, a)
     CROSS JOIN LATERAL (
           SELECT bulk FROM herald.deliveries -- usually the backlog is empty
            WHERE chain_id = a.c AND identity_registry = a.r AND agent_id = a.a AND place = 'line'
            ORDER BY bulk LIMIT 1) head
     CROSS JOIN LATERAL (
           SELECT id, kind, key, order_key, order_seq, seq FROM herald.deliveries
            WHERE chain_id = a.c AND identity_registry = a.r AND agent_id = a.a AND place = 'line' AND bulk = head.bulk
            ORDER BY seq + 0
            LIMIT (SELECT greatest(CASE WHEN (SELECT line_held_until > now() FROM herald.agents
                                                WHERE chain_id = a.c AND identity_registry = a.r AND agent_id = a.a) THEN 0
                                        WHEN head.bulk THEN $4::int / 2 ELSE $4::int END
                                   - (SELECT count(handed_at) FROM herald.deliveries
                                       WHERE chain_id = a.c AND identity_registry = a.r AND agent_id = a.a
                                         AND place = 'out'), 0))
              FOR UPDATE SKIP LOCKED) d
), ordered AS MATERIALIZED (
    SELECT *, CASE WHEN $5::boolean THEN herald.order_wait(id, c, r, a, kind, key, order_key, order_seq) END AS order_until
      FROM next
), decided AS MATERIALIZED ( -- of several ready deliveries of one ordering key, only the oldest is dispatched
    SELECT *, CASE WHEN $5::boolean AND order_until IS NULL
                        AND row_number() OVER (PARTITION BY c, r, a, order_key, order_until IS NULL ORDER BY seq) > 1
                        AND key NOT LIKE '%#Retraction@%'
                        AND NOT herald.ignores_order(c, r, a) THEN now() + interval '10 years'
                   ELSE order_until END AS recheck_at
      FROM ordered
), behind AS (
    UPDATE herald.deliveries d
       SET status = 'waiting', reason = 'behind_earlier', error = 'an earlier delivery of this client has not ended: it goes first',
           next_attempt_at = (SELECT recheck_at FROM decided WHERE decided.id = d.id),
           awaits_feedback = herald.awaits_feedback(kind, key, order_key, order_seq), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM decided WHERE recheck_at IS NOT NULL))
    RETURNING id, kind, attempts, chain_id, identity_registry, agent_id::text, seq
), handed AS (
    UPDATE herald.deliveries
       SET dispatch = dispatch + 1, handed_at = now(), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM decided WHERE recheck_at IS NULL))
    RETURNING id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base AS bulk,
              chain_id, identity_registry, agent_id::text, seq
)
SELECT id, dispatch, kind, attempts, bulk, chain_id, identity_registry, agent_id, behind
  FROM (SELECT *, false AS behind FROM handed
        UNION ALL
        SELECT id, 0, kind, attempts, false, chain_id, identity_registry, agent_id, seq, true FROM behind) x
 ORDER BY seq
