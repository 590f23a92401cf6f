-- blocker: find the delivery for which a waiting delivery (behind_earlier) waits. Among the other open deliveries of
-- its ordering key, this is the one that has the turn, else the one with the lowest index.
--
-- Returns no row if no such delivery exists.
--
-- $1 id of the waiting delivery
SELECT e.id
  FROM herald.work d
 CROSS JOIN LATERAL (SELECT id, order_seq, kind, turn AND place = 'out' AS has_turn
                       FROM herald.work
                      WHERE order_hash = hashtextextended(d.identity_registry || d.order_key, 0) AND id <> d.id
                        AND (order_seq <= d.order_seq OR turn AND place = 'out')
                      ORDER BY order_seq LIMIT 100) e
 WHERE d.id = $1
 ORDER BY e.has_turn DESC, e.order_seq, e.kind DESC
 LIMIT 1
