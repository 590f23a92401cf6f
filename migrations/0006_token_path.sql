-- The path that a stored token is for, in addition to its origin: several agents may share one origin.
--
-- Additive: workers of the previous version continue to work, and send tokens to every path of their origin. The
-- migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- waits for transactions that store a token

-- A token is sent to this path and the paths below it. Null: a previous version stored it; the first delivery to the
-- registered URL sets the path.
ALTER TABLE herald.agent_mcp_tokens ADD COLUMN IF NOT EXISTS path text;

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.agent_mcp_tokens DROP COLUMN IF EXISTS path;
SET lock_timeout = 0;
