-- set_token: keep a sealed credential of an agent for one origin, in the place of the one that was there.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 origin   $5 scheme   $6 header   $7 ciphertext   $8 key id
-- $9 expiry, or null: never
INSERT INTO herald.agent_mcp_tokens (chain_id, identity_registry, agent_id, origin, scheme, header, ciphertext, key_id, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (chain_id, identity_registry, agent_id, origin) DO UPDATE
   SET scheme = excluded.scheme, header = excluded.header, issuer = NULL, ciphertext = excluded.ciphertext, key_id = excluded.key_id,
       expires_at = excluded.expires_at, updated_at = now()
