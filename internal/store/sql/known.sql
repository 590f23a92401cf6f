-- known: what is there under some keys.
--
-- $1 keys text[]
-- Returns each with whether it was called, and whether it was or may have been: an attempt without outcome may have come to its call.
SELECT key, id, status, coalesce(reason, ''), job, secret_headers, called,
       called OR EXISTS (SELECT FROM herald.attempts a WHERE a.delivery_id = d.id AND a.outcome IS NULL)
  FROM herald.deliveries d WHERE key = ANY($1)
