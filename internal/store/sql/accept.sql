-- accept: take one job into the table. Returns its id, or no row when the key is known already.
--
-- $1 id   $2 key   $3 kind   $4 chain id   $5 identity registry   $6 agent id   $7 order key   $8 order seq
-- $9 job jsonb   $10 sealed headers or null   $11 status   $12 reason or null   $13 error or null
INSERT INTO herald.deliveries
       (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, job, secret_headers, status, reason, error, finished_at)
VALUES ($1, $2, $3, $4, $5, $6::text::numeric, $7, $8::text::numeric, $9, $10, $11, $12, $13, CASE WHEN $11 = 'rejected' THEN now() END)
ON CONFLICT (key) DO NOTHING
RETURNING id
