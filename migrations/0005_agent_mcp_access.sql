-- Access tokens that were obtained with a stored OAuth credential, sealed, so that every worker has them and one at a time renews them.
-- Beside agent_mcp_tokens, whose row is the operator's and changes with what he does.
--
-- Additive: a worker of the version before goes on working beside it; it knows no OAuth credential and holds what needs one. What it stores
-- in the place of such a credential leaves an access token behind that nobody sends: a token of another kind needs none. It can be run
-- again: a migration that was cut off goes on where it was.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- the foreign key waits for who stores a token just now

CREATE TABLE IF NOT EXISTS herald.agent_mcp_access (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    origin            text          NOT NULL,
    ciphertext        bytea,                    -- null: none was obtained yet
    key_id            bigint,
    expires_at        timestamptz,              -- null: the authorization server did not say
    renew_no          bigint        NOT NULL DEFAULT 0, -- of the last renewal that began; whoever writes names it
    renewing_until    timestamptz,              -- somebody renews; after that time whoever comes may
    PRIMARY KEY (chain_id, identity_registry, agent_id, origin),
    FOREIGN KEY (chain_id, identity_registry, agent_id, origin) REFERENCES herald.agent_mcp_tokens ON DELETE CASCADE
);

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
DROP TABLE IF EXISTS herald.agent_mcp_access;
SET lock_timeout = 0;
