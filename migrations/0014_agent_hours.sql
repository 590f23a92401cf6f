-- What calls of an agent came to, hour by hour, counted by the record itself (record.sql), so that nobody has to scan attempts; and since
-- when an agent fails.
--
-- The hour that goes on is counted in the agent's own row, which every record writes anyway: a second row for each record costs twice
-- as much. When an hour begins, the one before moves to agent_hours.
--
-- Additive: a worker of the version before goes on beside it, and what it records is not counted. Columns with a constant default, or none, are
-- entries in the catalogue: no row is written anew. It can be run again.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS herald.agent_hours (
    hour              timestamptz   NOT NULL, -- its beginning (UTC); when the outcome was recorded counts
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    calls             integer       NOT NULL, -- attempts that wrote a call, or failed by the agent's fault before
    failed            integer       NOT NULL, -- those that failed by the agent's fault
    failures          jsonb         NOT NULL, -- the same by reason: {"timeout": 2}
    latency           integer[]     NOT NULL, -- calls that were written, by duration: store.latencyBounds says the buckets' ends
    -- The hour comes first: one index serves retention, one agent (hour by hour) and, without the table, the agents that fail.
    PRIMARY KEY (hour, chain_id, identity_registry, agent_id) INCLUDE (calls, failed)
);

SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits

ALTER TABLE herald.agents
    ADD COLUMN IF NOT EXISTS failing_since  timestamptz, -- the first failed call since the last that succeeded; null: none failed
    ADD COLUMN IF NOT EXISTS last_called_at timestamptz, -- when the last call was recorded, however it ended
    -- As in agent_hours, of the last hour with a call; null: there was none.
    ADD COLUMN IF NOT EXISTS hour           timestamptz,
    ADD COLUMN IF NOT EXISTS hour_calls     integer   NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS hour_failed    integer   NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS hour_failures  jsonb     NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS hour_latency   integer[] NOT NULL DEFAULT '{0,0,0,0,0,0,0,0,0,0,0,0,0,0}';

-- +goose StatementBegin
-- An agent's hour only moves on, so that it is kept once. A count that is there already stays: no record fails for it.
CREATE OR REPLACE FUNCTION herald.keep_agent_hour() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO herald.agent_hours (hour, chain_id, identity_registry, agent_id, calls, failed, failures, latency)
    VALUES (OLD.hour, OLD.chain_id, OLD.identity_registry, OLD.agent_id, OLD.hour_calls, OLD.hour_failed, OLD.hour_failures, OLD.hour_latency)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE OR REPLACE TRIGGER keep_agent_hour AFTER UPDATE OF hour ON herald.agents
    FOR EACH ROW WHEN (OLD.hour < NEW.hour) EXECUTE FUNCTION herald.keep_agent_hour();

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
DROP TRIGGER IF EXISTS keep_agent_hour ON herald.agents;
DROP FUNCTION IF EXISTS herald.keep_agent_hour();
ALTER TABLE herald.agents DROP COLUMN IF EXISTS failing_since, DROP COLUMN IF EXISTS last_called_at, DROP COLUMN IF EXISTS hour,
    DROP COLUMN IF EXISTS hour_calls, DROP COLUMN IF EXISTS hour_failed, DROP COLUMN IF EXISTS hour_failures, DROP COLUMN IF EXISTS hour_latency;
SET lock_timeout = 0;
DROP TABLE IF EXISTS herald.agent_hours;
