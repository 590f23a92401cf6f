-- The preferences that an agent returned in its answers (store.Preferences), and until when its backlog is paused
-- because of them.
--
-- Additive: workers of the previous version continue to work and ignore both. Columns without a default: Postgres
-- rewrites no row. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it
ALTER TABLE herald.agents
    ADD COLUMN IF NOT EXISTS preferences     jsonb,       -- as last returned; null: never, or an operator cleared them
    -- Until then, new deliveries stay in the backlog, instead of being postponed one by one.
    ADD COLUMN IF NOT EXISTS line_held_until timestamptz;
SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.agents DROP COLUMN IF EXISTS preferences, DROP COLUMN IF EXISTS line_held_until;
SET lock_timeout = 0;
