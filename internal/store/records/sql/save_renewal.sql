-- save_renewal: store a renewed access token, and the credential's new ciphertext if the refresh token changed.
--
-- @chain_id, @registry, @agent_id, @origin; @renewal: the number that lease_renewal.sql returned
-- @stored_at: when the credential was stored with which the access token was obtained
-- @ciphertext, @key_id, @expires_at or null
-- @credential: the new ciphertext, or null: unchanged; @credential_key_id
--
-- Changes nothing and returns no row if another renewal has begun since, or if the credential was replaced. It locks
-- the credential first, like the transaction that replaces a credential.
WITH held AS MATERIALIZED (
    SELECT FROM herald.agent_mcp_tokens
     WHERE chain_id = @chain_id AND identity_registry = @registry AND agent_id = @agent_id AND origin = @origin AND updated_at = @stored_at
       FOR NO KEY UPDATE
), saved AS (
    UPDATE herald.agent_mcp_access SET ciphertext = @ciphertext, key_id = @key_id, expires_at = @expires_at, renewing_until = NULL
      FROM held
     WHERE chain_id = @chain_id AND identity_registry = @registry AND agent_id = @agent_id AND origin = @origin AND renew_no = @renewal
    RETURNING true AS done
), rotated AS (
    UPDATE herald.agent_mcp_tokens SET ciphertext = @credential, key_id = @credential_key_id
      FROM saved
     WHERE chain_id = @chain_id AND identity_registry = @registry AND agent_id = @agent_id AND origin = @origin AND @credential::bytea IS NOT NULL
    RETURNING true
)
SELECT done FROM saved
