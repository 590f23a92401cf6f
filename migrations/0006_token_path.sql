-- The path that a stored token is for, beside its origin: many agents may live at one origin.
--
-- Additive: a worker of the version before goes on working beside it, and sends tokens to every path of their origin. It can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- waits for who stores a token just now

-- A token goes to this path and what is below it. null: stored by a version before; the first delivery to the registered URL writes its path.
ALTER TABLE herald.agent_mcp_tokens ADD COLUMN IF NOT EXISTS path text;

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.agent_mcp_tokens DROP COLUMN IF EXISTS path;
SET lock_timeout = 0;
