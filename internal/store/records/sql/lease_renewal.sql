-- lease_renewal: begin to renew an OAuth access token, unless another worker is renewing it or has renewed it.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 origin   $5 length of the lease (interval)
-- $6 ciphertext of the access token to replace, or null: none is known
--
-- Returns the renewal's number, which save_renewal.sql needs, or no row if the renewal does not begin. The caller must
-- read the credential afterwards, in a statement of its own: if this statement waited for another renewal, its snapshot
-- still has the refresh token from before that renewal.
INSERT INTO herald.agent_mcp_access AS x (chain_id, identity_registry, agent_id, origin, renew_no, renewing_until)
SELECT chain_id, identity_registry, agent_id, origin, 1, now() + $5::interval
  FROM herald.agent_mcp_tokens
 WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND issuer IS NOT NULL
ON CONFLICT (chain_id, identity_registry, agent_id, origin) DO UPDATE
   SET renew_no = x.renew_no + 1, renewing_until = excluded.renewing_until
 WHERE (x.renewing_until IS NULL OR x.renewing_until < now()) AND x.ciphertext IS NOT DISTINCT FROM $6::bytea
RETURNING x.renew_no
