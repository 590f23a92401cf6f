-- What an agent asked for in its answers (store.Preferences), and until when its line is held for that.
--
-- Additive: a worker of the version before goes on beside it, and heeds neither. Columns without a default: no row is written anew. It can
-- be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits
ALTER TABLE herald.agents
    ADD COLUMN IF NOT EXISTS preferences     jsonb,       -- as it said them last; null: never, or an operator has cleared them
    ADD COLUMN IF NOT EXISTS line_held_until timestamptz; -- until then what comes stays in its line, instead of being put off one by one
SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.agents DROP COLUMN IF EXISTS preferences, DROP COLUMN IF EXISTS line_held_until;
SET lock_timeout = 0;
