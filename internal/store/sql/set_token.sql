-- set_token: keep a sealed credential of an agent for one origin, instead of the one that was there.
--
-- @chain_id, @registry, @agent_id, @origin, @scheme, @header, @ciphertext, @key_id
-- @expires_at, or null: never   @issuer, or null: it is no OAuth credential   @path, or null: the registered one
--
-- updated_at tells one credential from the next and grows with each: who works with the old one finds that out by it
-- (save_renewal).
INSERT INTO herald.agent_mcp_tokens AS t (chain_id, identity_registry, agent_id, origin, scheme, header, ciphertext, key_id, expires_at, issuer,
       path, updated_at)
VALUES (@chain_id, @registry, @agent_id, @origin, @scheme, @header, @ciphertext, @key_id, @expires_at, @issuer, @path, clock_timestamp())
ON CONFLICT (chain_id, identity_registry, agent_id, origin) DO UPDATE
   SET scheme = excluded.scheme, header = excluded.header, issuer = excluded.issuer, ciphertext = excluded.ciphertext, key_id = excluded.key_id,
       expires_at = excluded.expires_at, path = excluded.path, updated_at = greatest(clock_timestamp(), t.updated_at + interval '1 microsecond')
