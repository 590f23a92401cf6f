-- groups: group deliveries of given statuses by status, reason and sentence, the largest group first.
--
-- $1 statuses: held, waiting, or those of deliveries that ended without being delivered
-- $2 earliest end of an ended delivery
-- $3 how many deliveries of each status are read: of ended ones the last that ended
-- $4 how many groups are returned
-- $5 how many agents of a group are named, those with the most deliveries
--
-- The expression sentence is costly, so that each error is reduced once for an agent.
WITH found AS (
    SELECT s.status, d.* FROM unnest($1::text[]) s (status) CROSS JOIN LATERAL (
        (SELECT id, reason, error, chain_id, agent_id, undelivered_at AS at FROM herald.history
          WHERE undelivered = s.status AND undelivered_at >= $2 ORDER BY undelivered_at DESC LIMIT $3)
        UNION ALL
        (SELECT id, reason, error, chain_id, agent_id, updated_at FROM herald.work
          WHERE place = ANY (CASE s.status WHEN 'held' THEN ARRAY['held'] WHEN 'waiting' THEN ARRAY['waiting', 'task'] END) LIMIT $3)) d
), alike AS (
    SELECT status, reason, error, chain_id, agent_id, count(*) AS n, min(at) AS first, max(at) AS last, (array_agg(id ORDER BY at DESC))[1] AS sample
      FROM found GROUP BY 1, 2, 3, 4, 5
), of_agents AS (
    SELECT status, reason, herald.sentence(error) AS sentence, chain_id, agent_id, sum(n) AS n, min(first) AS first, max(last) AS last,
           (array_agg(sample ORDER BY last DESC))[1] AS sample
      FROM alike GROUP BY 1, 2, 3, 4, 5
)
SELECT status, coalesce(reason, ''), sentence, sum(n)::bigint, min(first), max(last), count(*),
       to_jsonb((array_agg(jsonb_build_object('agent', chain_id || ':' || agent_id, 'count', n) ORDER BY n DESC, chain_id, agent_id))[1:$5]),
       (array_agg(sample ORDER BY last DESC))[1], sum(sum(n)) OVER (PARTITION BY status) >= $3
  FROM of_agents GROUP BY status, reason, sentence
 ORDER BY 4 DESC, 1, 2, 3
 LIMIT $4
