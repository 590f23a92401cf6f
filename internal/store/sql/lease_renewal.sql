-- lease_renewal: begin to renew an access token of an OAuth credential, unless somebody does already or has done so.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 origin   $5 for how long
-- $6 the ciphertext of the access token that is to be replaced, or null: none is known
--
-- Returns the number by which the renewal is saved, and nothing when it is not given. The credential is read after that, by a statement
-- of its own: this one, if it had to wait for the renewal before, would see the refresh token from before it.
INSERT INTO herald.agent_mcp_access AS x (chain_id, identity_registry, agent_id, origin, renew_no, renewing_until)
SELECT chain_id, identity_registry, agent_id, origin, 1, now() + $5::interval
  FROM herald.agent_mcp_tokens
 WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND issuer IS NOT NULL
ON CONFLICT (chain_id, identity_registry, agent_id, origin) DO UPDATE
   SET renew_no = x.renew_no + 1, renewing_until = excluded.renewing_until
 WHERE (x.renewing_until IS NULL OR x.renewing_until < now()) AND x.ciphertext IS NOT DISTINCT FROM $6::bytea
RETURNING x.renew_no
