-- blocker: find the delivery for which a waiting delivery (behind_earlier) waits. Among the other open deliveries of
-- its ordering key, this is the one that has the turn, else the one with the lowest index. A held delivery delays no
-- other one but the revocation of its feedback and the responses to it.
--
-- Returns no row if no such delivery exists.
--
-- $1 id of the waiting delivery
SELECT e.id
  FROM herald.work d
 CROSS JOIN LATERAL (
       (SELECT id, order_seq, kind, turn AND place = 'out' AS has_turn
          FROM herald.work
         WHERE order_hash = hashtextextended(d.identity_registry || d.order_key, 0) AND place <> 'held' AND id <> d.id
           AND (order_seq <= d.order_seq OR turn AND place = 'out')
         ORDER BY order_seq LIMIT 100)
        UNION ALL
       SELECT id, order_seq, kind, false
         FROM herald.work
        WHERE d.kind <> 'NewFeedback' AND place = 'held'
          AND id = (SELECT h.id FROM herald.history h WHERE herald.key_hash(h.key) = herald.key_hash(d.order_key || '/' || d.order_seq || '#NewFeedback'))) e
 WHERE d.id = $1
 ORDER BY e.has_turn DESC, e.order_seq, e.kind DESC
 LIMIT 1
