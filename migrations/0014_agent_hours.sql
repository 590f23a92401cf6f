-- Calls of agents counted by hour and outcome, and since when an agent fails. record.sql counts them, so that no query
-- has to scan attempts.
--
-- The counts of the current hour are in the agent's own row, which every record updates anyway: a second row per record
-- would double the cost. When a later hour begins, a trigger copies the counts to agent_hours.
--
-- Additive: workers of the previous version continue to work, and their records are not counted. Nullable columns and
-- columns with a constant default only change the catalogue: Postgres rewrites no row. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
CREATE TABLE IF NOT EXISTS herald.agent_hours (
    hour              timestamptz   NOT NULL, -- beginning of the hour (UTC) in which the outcome was recorded
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    calls             integer       NOT NULL, -- attempts that wrote a call, or failed before by the agent's fault
    failed            integer       NOT NULL, -- attempts that failed by the agent's fault
    failures          jsonb         NOT NULL, -- the same by reason: {"timeout": 2}
    latency           integer[]     NOT NULL, -- written calls by duration: store.latencyBounds has the upper bounds of the buckets
    -- The hour is the first column: one index serves retention, the hours of one agent, and, without reading the table,
    -- the list of failing agents.
    PRIMARY KEY (hour, chain_id, identity_registry, agent_id) INCLUDE (calls, failed)
);

SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it

ALTER TABLE herald.agents
    ADD COLUMN IF NOT EXISTS failing_since  timestamptz, -- first failed call since the last success; null: none failed
    ADD COLUMN IF NOT EXISTS last_called_at timestamptz, -- when the last call was recorded, with any outcome
    -- As in agent_hours, for the last hour with a call; null: no call yet.
    ADD COLUMN IF NOT EXISTS hour           timestamptz,
    ADD COLUMN IF NOT EXISTS hour_calls     integer   NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS hour_failed    integer   NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS hour_failures  jsonb     NOT NULL DEFAULT '{}',
    ADD COLUMN IF NOT EXISTS hour_latency   integer[] NOT NULL DEFAULT '{0,0,0,0,0,0,0,0,0,0,0,0,0,0}';

-- +goose StatementBegin
-- An agent's hour never decreases, so each hour is copied once. An existing row stays, so that no record fails.
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
