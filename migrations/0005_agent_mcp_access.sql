-- Access tokens that workers obtained with a stored OAuth credential, sealed, so that all workers share them and one at
-- a time renews them. They are separate from agent_mcp_tokens, whose rows change only when an operator stores a
-- credential.
--
-- Additive: workers of the previous version continue to work; they do not know OAuth credentials and hold deliveries
-- that need one. If such a worker replaces the credential by a token of another kind, an unused access token stays. The
-- migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- the foreign key waits for transactions that store a token

CREATE TABLE IF NOT EXISTS herald.agent_mcp_access (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    origin            text          NOT NULL,
    ciphertext        bytea,                    -- null: none was obtained yet
    key_id            bigint,
    expires_at        timestamptz,              -- null: the authorization server set no expiry
    renew_no          bigint        NOT NULL DEFAULT 0, -- number of the last renewal that began; a write names it
    renewing_until    timestamptz,              -- lease of the renewal; after that time another worker may begin one
    PRIMARY KEY (chain_id, identity_registry, agent_id, origin),
    FOREIGN KEY (chain_id, identity_registry, agent_id, origin) REFERENCES herald.agent_mcp_tokens ON DELETE CASCADE
);

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
DROP TABLE IF EXISTS herald.agent_mcp_access;
SET lock_timeout = 0;
