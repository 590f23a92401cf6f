-- followers: waiting deliveries (behind_earlier) that no longer have a delivery to wait for.
--
-- Recording an outcome releases the deliveries that wait for it, but a cancellation, an expiry or a reorg does not. An
-- operator may also have switched the order off.
--
-- $1 true: deliveries of one ordering key are sent in order   $2 at most this many   $3 where to begin, any number
--
-- The recursion jumps from behind_hash to behind_hash, so that ten thousand waiting deliveries of one ordering key cost
-- as much as one. Each call begins at another hash and reads 2,000 hashes at most. An ordering key has up to three
-- hashes: of its deliveries with an index, of those without one, and of those that wait for their feedback. The
-- statement tests the next delivery of the first two and the next 32 of the third. It locks nothing;
-- dispatch_agents.sql tests them again.
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
