-- save_renewal: keep a renewed access token, and the credential with a new refresh token if there is one.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 origin   $5 number of the renewal
-- $6 when the credential was stored that it was obtained with   $7 ciphertext   $8 key id   $9 expiry, or null
-- $10 the credential's new ciphertext, or null: it stays   $11 its key id
--
-- Changes nothing, and returns none, when another renewal has begun since or the credential was replaced. The credential is locked first,
-- as by who replaces it.
WITH held AS MATERIALIZED (
    SELECT FROM herald.agent_mcp_tokens
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND updated_at = $6
       FOR NO KEY UPDATE
), saved AS (
    UPDATE herald.agent_mcp_access SET ciphertext = $7, key_id = $8, expires_at = $9, renewing_until = NULL
      FROM held
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND renew_no = $5
    RETURNING true AS done
), rotated AS (
    UPDATE herald.agent_mcp_tokens SET ciphertext = $10, key_id = $11
      FROM saved
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND $10::bytea IS NOT NULL
    RETURNING true
)
SELECT done FROM saved
