-- known: what is there under some keys.
--
-- $1 keys text[]
SELECT key, id, status, coalesce(reason, ''), job, secret_headers, called FROM herald.deliveries WHERE key = ANY($1)
