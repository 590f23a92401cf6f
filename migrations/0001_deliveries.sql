-- The first tables of the schema herald (docs/design/ledger.md). Addresses are text, lower-case with 0x; wide integers
-- are numeric.

-- +goose Up
CREATE SCHEMA IF NOT EXISTS herald;

-- Fencing tokens. Each claim draws one; a write under an older token changes nothing.
CREATE SEQUENCE herald.claim_no;

CREATE TABLE herald.agents (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    epoch             bigint        NOT NULL DEFAULT 0,    -- raised when cached data about the agent may be stale
    enabled           boolean       NOT NULL DEFAULT true, -- false holds its deliveries (agent_disabled)
    policy            jsonb         NOT NULL DEFAULT '{}',
    endpoint          text,                                -- of the last delivery
    server_info       jsonb,
    protocol          text,                                -- MCP revision spoken
    tools             jsonb,
    state             text          NOT NULL DEFAULT 'pending', -- disabled pending connected needs_auth failed
    last_ok_at        timestamptz,
    last_error        text,
    last_error_at     timestamptz,
    totals            jsonb         NOT NULL DEFAULT '{}', -- ended deliveries by status
    created_at        timestamptz   NOT NULL DEFAULT now(),
    updated_at        timestamptz   NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, identity_registry, agent_id)
);

CREATE TABLE herald.deliveries (
    id                uuid          PRIMARY KEY,           -- UUIDv5 (URL name space) of key
    key               text          NOT NULL UNIQUE,
    seq               bigint        GENERATED ALWAYS AS IDENTITY, -- order of acceptance
    kind              text          NOT NULL,
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    order_key         text          NOT NULL,              -- one delivery at a time per agent and client
    order_seq         numeric(20,0) NOT NULL,
    job               jsonb,                               -- deleted by retention; contains no secrets
    secret_headers    bytea,                               -- action.endpoint.headers, sealed
    status            text          NOT NULL DEFAULT 'queued',
    reason            text,
    attempts          integer       NOT NULL DEFAULT 0,
    dispatch          integer       NOT NULL DEFAULT 0,    -- n of the newest task
    handed_at         timestamptz,                         -- when task n went to Redis; null: no task in Redis
    called            boolean       NOT NULL DEFAULT false,-- a call is known to have been written to the agent
    claim_no          bigint,
    lease_until       timestamptz,
    next_attempt_at   timestamptz,
    tool_name         text,
    endpoint          text,
    file_verification text,
    file_source       text,
    result            jsonb,
    error             text,
    accepted_at       timestamptz   NOT NULL DEFAULT now(),-- as created_at, or when it was queued anew: expiry counts from here
    created_at        timestamptz   NOT NULL DEFAULT now(),
    updated_at        timestamptz   NOT NULL DEFAULT now(),
    finished_at       timestamptz,
    CONSTRAINT deliveries_status CHECK (status IN
        ('queued', 'running', 'waiting', 'held', 'delivered', 'skipped', 'rejected', 'dead', 'cancelled')),
    CONSTRAINT deliveries_waiting CHECK (status <> 'waiting' OR next_attempt_at IS NOT NULL),
    CONSTRAINT deliveries_running CHECK (status <> 'running' OR (claim_no IS NOT NULL AND lease_until IS NOT NULL))
);

-- An agent's next deliveries to dispatch, oldest first.
CREATE INDEX deliveries_backlog ON herald.deliveries (chain_id, identity_registry, agent_id, seq)
    WHERE status = 'queued' AND handed_at IS NULL;
-- An agent's dispatched deliveries, of which it may have 8.
CREATE INDEX deliveries_handed ON herald.deliveries (chain_id, identity_registry, agent_id)
    WHERE status IN ('queued', 'running') AND handed_at IS NOT NULL;
-- For the reconciler: tasks that Redis may have lost, waits without a task, expired leases, held deliveries, deliveries
-- that are too old.
CREATE INDEX deliveries_handed_id ON herald.deliveries (id) WHERE status IN ('queued', 'waiting') AND handed_at IS NOT NULL;
CREATE INDEX deliveries_due ON herald.deliveries (next_attempt_at) WHERE status = 'waiting' AND handed_at IS NULL;
CREATE INDEX deliveries_lease ON herald.deliveries (lease_until) WHERE status = 'running';
CREATE INDEX deliveries_held ON herald.deliveries (reason, chain_id, seq) WHERE status = 'held';
CREATE INDEX deliveries_open ON herald.deliveries (accepted_at) WHERE finished_at IS NULL;
-- For the order and for lists.
CREATE INDEX deliveries_order ON herald.deliveries (order_key, order_seq);
CREATE INDEX deliveries_seq ON herald.deliveries (seq);
CREATE INDEX deliveries_agent ON herald.deliveries (chain_id, agent_id, seq DESC);
CREATE INDEX deliveries_status ON herald.deliveries (status, seq DESC);

-- One row per attempt, inserted by the claim and completed after the call. No foreign key: whole weeks are dropped.
CREATE TABLE herald.attempts (
    delivery_id uuid        NOT NULL,
    number      integer     NOT NULL,
    started_at  timestamptz NOT NULL,
    duration_ms integer,
    stage       text        NOT NULL, -- last stage reached: claim check resolve fetch compose call record
    outcome     text,                 -- the resulting status; null: running, or its process died
    reason      text,
    error       text,
    arguments   jsonb,                -- as sent, at most 16 KiB; {"truncated": true, …} when cut
    response    jsonb,                -- as received, with the same limit
    protocol    text,
    PRIMARY KEY (delivery_id, number, started_at)
) PARTITION BY RANGE (started_at);

CREATE TABLE herald.attempts_default PARTITION OF herald.attempts DEFAULT;

-- +goose StatementBegin
-- ensure_attempt_partitions creates the partitions for the week of "at" and the "ahead" weeks after it, named
-- attempts_yyyymmdd after their Monday. It returns how many it created and leaves existing partitions unchanged. A week
-- that has rows in the default partition gets none: Postgres would reject it. The function creates a table and then
-- attaches it, with a short lock timeout: CREATE … PARTITION OF would block every worker while it waits for its lock.
CREATE FUNCTION herald.ensure_attempt_partitions(at timestamptz, ahead integer) RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
DECLARE
    monday date := date_trunc('week', at AT TIME ZONE 'UTC')::date;
    made   integer := 0;
    name   text;
    lo     timestamptz;
    hi     timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('herald.ensure_attempt_partitions'));
    FOR week IN 0..ahead LOOP
        name := 'attempts_' || to_char(monday + 7 * week, 'YYYYMMDD');
        lo := (monday + 7 * week)::timestamp AT TIME ZONE 'UTC';
        hi := (monday + 7 * (week + 1))::timestamp AT TIME ZONE 'UTC';
        CONTINUE WHEN to_regclass('herald.' || name) IS NOT NULL;
        CONTINUE WHEN EXISTS (SELECT FROM herald.attempts_default WHERE started_at >= lo AND started_at < hi);
        EXECUTE format('CREATE TABLE herald.%I (LIKE herald.attempts INCLUDING ALL)', name);
        EXECUTE format('ALTER TABLE herald.attempts ATTACH PARTITION herald.%I FOR VALUES FROM (%L) TO (%L)', name, lo, hi);
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
-- +goose StatementEnd

SELECT herald.ensure_attempt_partitions(now(), 4);

-- Credentials that operators stored, always encrypted.
CREATE TABLE herald.agent_mcp_tokens (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    origin            text          NOT NULL,
    scheme            text          NOT NULL,
    header            text,
    issuer            text,
    ciphertext        bytea         NOT NULL,
    key_id            bigint        NOT NULL,
    created_at        timestamptz   NOT NULL DEFAULT now(),
    updated_at        timestamptz   NOT NULL DEFAULT now(),
    expires_at        timestamptz,
    PRIMARY KEY (chain_id, identity_registry, agent_id, origin)
);

-- How far each contract of a chain has been read. A contract has one cursor, and a backfill has one for all of its
-- contracts until it ends. blocks is [{number, hash}, …], newest last, and is used to find where a reorg began.
CREATE TABLE herald.chain_cursors (
    chain_id   bigint      NOT NULL,
    contracts  text        NOT NULL, -- lower-case address; those of a backfill are separated by commas
    backfill   text        NOT NULL, -- the blocks of a backfill as text; '' for the cursor of a contract
    next_block bigint      NOT NULL,
    blocks     jsonb       NOT NULL DEFAULT '[]',
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, contracts, backfill)
);

-- The result table of the backend that Herald replaces, as a view: one row per attempt that is not running. Deliveries
-- that ended without being delivered, skipped ones included, have the status failed, and error_message has the reason.
-- An attempt whose worker died has no outcome of its own.
CREATE VIEW herald.action_results AS
SELECT concat_ws(':', a.delivery_id, a.number, (extract(epoch FROM a.started_at) * 1000000)::bigint) AS id,
       coalesce(d.job #>> '{meta,jobId}', d.id::text)                      AS job_id,
       d.job #>> '{meta,triggerId}'                                        AS trigger_id,
       coalesce(d.job #>> '{meta,eventId}', d.key)                         AS event_id,
       'mcp'::text                                                         AS action_type,
       CASE WHEN a.outcome = 'delivered'             THEN 'success'
            WHEN a.outcome IN ('waiting', 'held')    THEN 'retrying'
            WHEN a.outcome IS NULL AND (a.number < d.attempts OR d.finished_at IS NULL) THEN 'retrying'
            ELSE 'failed' END                                              AS status,
       a.started_at                                                        AS executed_at,
       a.duration_ms                                                       AS duration_ms,
       CASE WHEN a.outcome IS NULL       THEN 'outcome_unknown: the worker ended before it could record what happened'
            WHEN a.outcome <> 'delivered' THEN concat_ws(': ', a.reason, a.error) END AS error_message,
       a.response                                                          AS response_data,
       a.number - 1                                                        AS retry_count
  FROM herald.attempts a
  JOIN herald.deliveries d ON d.id = a.delivery_id
 WHERE NOT (a.outcome IS NULL AND d.status = 'running' AND a.number = d.attempts);

-- +goose Down
DROP VIEW herald.action_results;
DROP TABLE herald.chain_cursors, herald.agent_mcp_tokens, herald.attempts, herald.deliveries, herald.agents;
DROP FUNCTION herald.ensure_attempt_partitions(timestamptz, integer);
DROP SEQUENCE herald.claim_no;
