-- set_token: store an encrypted credential of an agent for one origin, in place of the present one.
--
-- @chain_id, @registry, @agent_id, @origin, @scheme, @header, @ciphertext, @key_id
-- @expires_at, or null: never   @issuer, or null: not an OAuth credential
-- @path, or null: the first registered URL sets it
--
-- Each new credential gets a higher updated_at, by which save_renewal.sql detects that the credential was replaced.
INSERT INTO herald.agent_mcp_tokens AS t (chain_id, identity_registry, agent_id, origin, scheme, header, ciphertext, key_id, expires_at, issuer,
       path, updated_at)
VALUES (@chain_id, @registry, @agent_id, @origin, @scheme, @header, @ciphertext, @key_id, @expires_at, @issuer, @path, clock_timestamp())
ON CONFLICT (chain_id, identity_registry, agent_id, origin) DO UPDATE
   SET scheme = excluded.scheme, header = excluded.header, issuer = excluded.issuer, ciphertext = excluded.ciphertext, key_id = excluded.key_id,
       expires_at = excluded.expires_at, path = excluded.path, updated_at = greatest(clock_timestamp(), t.updated_at + interval '1 microsecond')
