-- set_token: keep a sealed credential of an agent for one origin, in the place of the one that was there.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 origin   $5 scheme   $6 header   $7 ciphertext   $8 key id
-- $9 expiry, or null: never   $10 issuer, or null: it is no OAuth credential   $11 path, or null: the registered one
--
-- updated_at tells one credential from the next and grows with each: who works with the old one finds that out by it (save_renewal).
INSERT INTO herald.agent_mcp_tokens AS t (chain_id, identity_registry, agent_id, origin, scheme, header, ciphertext, key_id, expires_at, issuer,
       path, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, clock_timestamp())
ON CONFLICT (chain_id, identity_registry, agent_id, origin) DO UPDATE
   SET scheme = excluded.scheme, header = excluded.header, issuer = excluded.issuer, ciphertext = excluded.ciphertext, key_id = excluded.key_id,
       expires_at = excluded.expires_at, path = excluded.path, updated_at = greatest(clock_timestamp(), t.updated_at + interval '1 microsecond')
