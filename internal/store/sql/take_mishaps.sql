-- take_mishaps: the deliveries that died or were held since the last look, and forgets them: one row for an agent, a
-- status and a reason, with the first deliveries of it. An agent of which the same was told within a pause keeps its own
-- until that is over, so that a flood makes few posts.
--
-- $1 pause (interval)   $2 limit of deliveries   $3 how many ids a row has
WITH taken AS (
    DELETE FROM herald.mishaps
     WHERE seq IN (SELECT m.seq FROM herald.mishaps m
                    WHERE NOT EXISTS (SELECT FROM herald.alerts a
                                       WHERE a.chain_id = m.chain_id AND a.identity_registry = m.identity_registry AND a.agent_id = m.agent_id
                                         AND a.kind = 'deliveries.' || m.status AND a.created_at > now() - $1::interval)
                    ORDER BY m.seq LIMIT $2)
    RETURNING *
)
SELECT status, chain_id, identity_registry, agent_id::text, coalesce(reason, ''), count(*),
       (array_agg(delivery_id ORDER BY seq))[1:$3::int]
  FROM taken
 GROUP BY 1, 2, 3, 4, 5
 ORDER BY min(seq)
