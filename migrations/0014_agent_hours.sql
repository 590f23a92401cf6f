-- What calls of an agent came to, counted by the record itself (record.sql), so that nobody has to scan attempts; and since when an agent
-- fails.
--
-- Additive: a worker of the version before goes on beside it, and what it records is not counted. New columns without a default are entries in
-- the catalogue: no row is written anew. It can be run again.

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
    -- The hour comes first: those rows that are written lie together, and one index serves the agents that fail, retention and, hour by
    -- hour, one agent. An update changes no column of it, and finds room on its page: it is HOT.
    PRIMARY KEY (hour, chain_id, identity_registry, agent_id)
) WITH (fillfactor = 70);

SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits

ALTER TABLE herald.agents
    ADD COLUMN IF NOT EXISTS failing_since  timestamptz, -- the first failed call since the last that succeeded; null: none failed
    ADD COLUMN IF NOT EXISTS last_called_at timestamptz; -- when the last call was recorded, however it ended

SET lock_timeout = 0;

-- +goose Down
SET lock_timeout = '10s';
ALTER TABLE herald.agents DROP COLUMN IF EXISTS failing_since, DROP COLUMN IF EXISTS last_called_at;
SET lock_timeout = 0;
DROP TABLE IF EXISTS herald.agent_hours;
