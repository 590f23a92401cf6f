-- blocker: the id of the delivery that a waiting delivery (behind_earlier) waits for.
--
-- Returns null if no such delivery exists.
--
-- $1 id of the waiting delivery
SELECT coalesce(
       (SELECT id FROM herald.deliveries e
         WHERE hashtextextended(e.order_key, 0) = hashtextextended(d.order_key, 0) AND e.order_key = d.order_key
           AND e.holds_until IS NOT NULL AND e.finished_at IS NULL AND e.id <> d.id
           AND (e.order_seq < d.order_seq OR e.order_seq = d.order_seq AND d.awaits_feedback)
           AND e.chain_id = d.chain_id AND e.identity_registry = d.identity_registry AND e.agent_id = d.agent_id
         ORDER BY e.order_seq, e.seq LIMIT 1),
       (SELECT id FROM herald.deliveries o
         WHERE o.chain_id = d.chain_id AND o.identity_registry = d.identity_registry AND o.agent_id = d.agent_id
           AND o.place = 'out' AND o.order_key = d.order_key AND o.id <> d.id
         LIMIT 1))
  FROM herald.deliveries d WHERE d.id = $1
