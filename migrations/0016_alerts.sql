-- Alerts that are posted to HERALD_ALERT_URL.
--
--   mishaps         deliveries that became dead or held since the last check, counted by agent and reason. A trigger
--                   counts them in the same transaction, so that each is counted once even if the transaction commits
--                   late. Every transaction that ends or holds deliveries has locked their agent, so only the check
--                   competes for the lock on an agent's counter
--   alerted_agents  agents for which a problem was reported; only a change is reported again
--   alerts          the outbox: one row is one post, kept until the receiver has accepted it
--
-- Other updates pay only for the trigger's condition. Additive: workers of the previous version continue to work, and
-- the trigger counts their changes too. The migration can be run again.

-- +goose NO TRANSACTION
-- +goose Up
SET lock_timeout = '10s'; -- while an ALTER waits for its lock, every worker waits behind it

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
    failing_since     timestamptz,            -- the agent's failing_since at the time of the alert
    PRIMARY KEY (chain_id, identity_registry, agent_id)
);
-- Agents that were disabled before this migration are not reported.
INSERT INTO herald.alerted_agents SELECT chain_id, identity_registry, agent_id, 'disabled' FROM herald.agents WHERE NOT enabled
ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS herald.alerts (
    id                uuid          PRIMARY KEY DEFAULT gen_random_uuid(), -- the header webhook-id, equal in every attempt
    kind              text          NOT NULL, -- agent.failing agent.recovered agent.disabled deliveries.dead deliveries.held
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    payload           json          NOT NULL, -- the exact body of the post
    created_at        timestamptz   NOT NULL DEFAULT now(),
    attempts          integer       NOT NULL DEFAULT 0,
    -- When the next attempt is due. While a worker posts the alert: the end of its lease. Null: sent, or given up.
    next_attempt_at   timestamptz   DEFAULT now(),
    sent_at           timestamptz,
    error             text                         -- of the last failed attempt
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

SET lock_timeout = 0; -- the statements below block no worker while they wait

-- Failing and disabled agents are few, and an update that changes neither column writes neither index.
DROP INDEX CONCURRENTLY IF EXISTS herald.agents_failing; -- an interrupted CREATE leaves an invalid index
CREATE INDEX CONCURRENTLY agents_failing ON herald.agents (failing_since) WHERE failing_since IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS herald.agents_disabled;
CREATE INDEX CONCURRENTLY agents_disabled ON herald.agents (chain_id, identity_registry, agent_id) WHERE NOT enabled;

-- +goose Down
DROP INDEX CONCURRENTLY IF EXISTS herald.agents_disabled;
DROP INDEX CONCURRENTLY IF EXISTS herald.agents_failing;
SET lock_timeout = '10s';
DROP TRIGGER IF EXISTS deliveries_mishap ON herald.deliveries;
DROP FUNCTION IF EXISTS herald.note_mishap();
DROP TABLE IF EXISTS herald.alerts, herald.alerted_agents, herald.mishaps; -- failing_since belongs to 0014
SET lock_timeout = 0;
