-- followers: deliveries that wait behind another one of their client (behind_earlier) which is there no more: it was cancelled, expired or
-- vanished in a reorg, which lets nobody go, or order was switched off.
--
-- $1 true: deliveries of one client keep their order   $2 at most this many   $3 where to begin, any number
--
-- Jumps from client to client, so that ten thousand of one cost as much as one; from another one in each round, and over so many
-- clients at most. Of each it looks at the next with an index and the next without, and at the first that await a feedback. Nothing is
-- locked: who moves them looks again.
WITH RECURSIVE client AS (
    (SELECT herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) AS hash FROM herald.deliveries
      WHERE herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) >= $3::bigint
      ORDER BY herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) LIMIT 1)
    UNION ALL
    SELECT n.hash FROM client c
     CROSS JOIN LATERAL (
           SELECT herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) AS hash FROM herald.deliveries
            WHERE herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) > c.hash
            ORDER BY herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) LIMIT 1) n
)
SELECT f.id, f.chain_id, f.identity_registry, f.agent_id::text
  FROM (SELECT hash FROM client LIMIT 2000) c
 CROSS JOIN LATERAL (
       SELECT awaits_feedback FROM herald.deliveries
        WHERE herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) = c.hash LIMIT 1) one
 CROSS JOIN LATERAL (
       SELECT * FROM herald.deliveries
        WHERE herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) = c.hash
        ORDER BY herald.follow_turn(awaits_feedback, kind, order_seq, seq)
        LIMIT CASE WHEN one.awaits_feedback THEN 32 ELSE 1 END) f
 WHERE NOT $1::boolean
    OR herald.order_wait(f.id, f.chain_id, f.identity_registry, f.agent_id, f.kind, f.key, f.order_key, f.order_seq) IS NULL
 LIMIT $2
