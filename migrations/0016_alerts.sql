-- What the operator is told of by HERALD_ALERT_URL, and what he was told last.
--
--   mishaps         deliveries that died or were held since the last look, counted by agent and reason by a trigger in the transaction that
--                   did it, so that each is counted once however late it commits. That transaction has locked the agent, as all do that end
--                   or hold deliveries, so the counter of an agent is a lock that nobody else wants but the look
--   alerted_agents  agents whose trouble was noted: what changes against it is news
--   alerts          the outbox: one row is one post, kept until the receiver has taken it
--
-- The trigger's condition is all that other updates pay. Additive: a worker of the version before goes on working beside it, and what it
-- does to deliveries is noted too. It can be run again: a migration that was cut off goes on where it was.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- behind an ALTER that waits, every worker waits

CREATE TABLE IF NOT EXISTS herald.mishaps (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    status            text          NOT NULL, -- dead held
    reason            text          NOT NULL, -- '': none
    count             bigint        NOT NULL DEFAULT 1,
    deliveries        uuid[]        NOT NULL, -- the first 20
    PRIMARY KEY (chain_id, identity_registry, agent_id, status, reason)
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS herald.alerted_agents (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    state             text          NOT NULL CHECK (state IN ('failing', 'disabled')),
    failing_since     timestamptz,            -- as it was then
    PRIMARY KEY (chain_id, identity_registry, agent_id)
);
-- Who was disabled before anybody was told of such things is no news.
INSERT INTO herald.alerted_agents SELECT chain_id, identity_registry, agent_id, 'disabled' FROM herald.agents WHERE NOT enabled
ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS herald.alerts (
    id                uuid          PRIMARY KEY DEFAULT gen_random_uuid(), -- webhook-id: the same in every attempt
    kind              text          NOT NULL, -- agent.failing agent.recovered agent.disabled deliveries.dead deliveries.held
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    payload           json          NOT NULL, -- what is posted, to the byte
    created_at        timestamptz   NOT NULL DEFAULT now(),
    attempts          integer       NOT NULL DEFAULT 0,
    next_attempt_at   timestamptz   DEFAULT now(), -- while somebody posts it: when he is given up; null: sent, or given up
    sent_at           timestamptz,
    error             text                         -- why the last attempt failed
);
CREATE INDEX IF NOT EXISTS alerts_due ON herald.alerts (next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS alerts_created ON herald.alerts (created_at);
CREATE INDEX IF NOT EXISTS alerts_agent ON herald.alerts (chain_id, identity_registry, agent_id, kind, created_at);

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION herald.note_mishap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO herald.mishaps AS m (chain_id, identity_registry, agent_id, status, reason, deliveries)
    VALUES (NEW.chain_id, NEW.identity_registry, NEW.agent_id, NEW.status, coalesce(NEW.reason, ''), ARRAY[NEW.id])
    ON CONFLICT (chain_id, identity_registry, agent_id, status, reason) DO UPDATE
       SET count = m.count + 1,
           deliveries = CASE WHEN cardinality(m.deliveries) < 20 THEN m.deliveries || excluded.deliveries ELSE m.deliveries END;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE OR REPLACE TRIGGER deliveries_mishap AFTER UPDATE OF status ON herald.deliveries FOR EACH ROW
    WHEN (NEW.status IN ('dead', 'held') AND OLD.status <> NEW.status) EXECUTE FUNCTION herald.note_mishap();

SET lock_timeout = 0; -- what follows blocks nobody while it waits

-- Agents in trouble: few, and an update that leaves both columns alone writes neither index.
DROP INDEX CONCURRENTLY IF EXISTS herald.agents_failing; -- one that was cut off is there and invalid
CREATE INDEX CONCURRENTLY agents_failing ON herald.agents (failing_since) WHERE failing_since IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS herald.agents_disabled;
CREATE INDEX CONCURRENTLY agents_disabled ON herald.agents (chain_id, identity_registry, agent_id) WHERE NOT enabled;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS herald.agents_disabled;
DROP INDEX CONCURRENTLY IF EXISTS herald.agents_failing;
SET lock_timeout = '10s';
DROP TRIGGER IF EXISTS deliveries_mishap ON herald.deliveries;
DROP FUNCTION IF EXISTS herald.note_mishap();
DROP TABLE IF EXISTS herald.alerts, herald.alerted_agents, herald.mishaps; -- failing_since is 0014's
SET lock_timeout = 0;
