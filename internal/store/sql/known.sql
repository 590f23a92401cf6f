-- known: read existing deliveries, to compare them with arriving jobs of the same keys. The caller adds the WHERE
-- clause.
--
-- The eighth column is true if the agent was or may have been called: the delivery runs, or an attempt without an
-- outcome may have reached its call. On a chain whose events are verified, that is impossible before the row is bound
-- (bind.sql).
SELECT key, id, status, coalesce(reason, ''), job, secret_headers, called,
       called OR (bound OR NOT verified) AND (status = 'running' OR EXISTS (SELECT FROM herald.attempts a WHERE a.delivery_id = d.id AND a.outcome IS NULL)),
       bound, verified OR EXISTS (SELECT FROM herald.verified_chains v WHERE v.chain_id = d.chain_id), source, trust
  FROM herald.deliveries d
