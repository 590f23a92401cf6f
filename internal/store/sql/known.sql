-- known: the deliveries that have some keys.
--
-- $1 keys text[]
-- Returns for each whether the agent was called, and whether it was or may have been called: an attempt without an
-- outcome may have reached its call.
SELECT key, id, status, coalesce(reason, ''), job, secret_headers, called,
       called OR EXISTS (SELECT FROM herald.attempts a WHERE a.delivery_id = d.id AND a.outcome IS NULL)
  FROM herald.deliveries d WHERE key = ANY($1)
