-- known: read deliveries to which jobs with the same keys are compared. The caller adds the WHERE clause.
--
-- Returns for each whether the agent was or may have been called: an attempt without an outcome may have reached its
-- call. The agent is never called before the row is bound (bind.sql), unless the chain's events are not verified.
SELECT key, id, status, coalesce(reason, ''), job, secret_headers, called,
       called OR (bound OR NOT verified) AND (status = 'running' OR EXISTS (SELECT FROM herald.attempts a WHERE a.delivery_id = d.id AND a.outcome IS NULL)),
       bound, verified OR EXISTS (SELECT FROM herald.verified_chains v WHERE v.chain_id = d.chain_id), source, trust
  FROM herald.deliveries d
