-- known: read existing deliveries, to compare them with arriving jobs of the same keys. The caller adds the WHERE
-- clause, about h.
--
-- The seventh column is true if the agent was or may have been called: the delivery runs, or an attempt without an
-- outcome may have reached its call. On a chain whose events are verified, that is impossible before the row is bound
-- (bind.sql). The last but one is true if a retraction of this feedback and block exists: under the first of
-- store.retractionKeys. The last is true if a reorg removed the event, and a cursor has read up to the chain's newest
-- block without finding it again.
--
-- The statement reads the tables. Through the view deliveries, statistics of a time without open deliveries could make
-- Postgres read all open ones.
SELECT h.key, h.id, d.status, coalesce(d.reason, ''), h.job, h.secret_headers,
       d.called OR (d.bound OR NOT h.verified) AND (d.status = 'running' OR EXISTS (SELECT FROM herald.attempts a WHERE a.delivery_id = h.id AND a.outcome IS NULL)),
       d.bound, h.verified OR EXISTS (SELECT FROM herald.verified_chains v WHERE v.chain_id = h.chain_id), h.source, h.trust,
       h.kind = 'NewFeedback' AND EXISTS (
           SELECT FROM herald.history r
            WHERE herald.key_hash(r.key) = herald.key_hash(split_part(h.key, '#', 1) || '#Retraction@' || coalesce(h.job ->> 'blockHash', '0x' || repeat('0', 64)))),
       EXISTS (SELECT FROM herald.chain_events e WHERE e.delivery_id = h.id AND e.state = 'gone')
  FROM herald.history h
  LEFT JOIN LATERAL (SELECT id, status, reason, called, bound FROM herald.work WHERE id = h.id LIMIT 1) w ON true
 CROSS JOIN LATERAL (SELECT coalesce(w.status, h.status) AS status, CASE WHEN w.id IS NULL THEN h.reason ELSE w.reason END AS reason,
                            coalesce(w.called, h.called) AS called, coalesce(w.bound, h.bound) AS bound) d
