-- The schema herald (docs/design/ledger.md). store.Migrate creates the schema itself before it applies this file.
--
-- Addresses are text, lower-case with 0x. Wide integers are numeric. Columns that hold secrets are encrypted.

-- +goose Up

-- Agents, with what their calls taught and their counters. Every transaction that dispatches deliveries of an agent, or
-- records an outcome, locks the agent's row first.
CREATE TABLE herald.agents (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    epoch             bigint        NOT NULL DEFAULT 0,    -- raised when cached data about the agent may be stale
    raised_epoch      bigint,                              -- epoch that a failure raised; null: it has succeeded since
    enabled           boolean       NOT NULL DEFAULT true, -- false holds its deliveries (agent_disabled); state is disabled then
    policy            jsonb         NOT NULL DEFAULT '{}', -- the operator's policy of the agent
    own_policy        jsonb         NOT NULL DEFAULT '{}', -- the agent's own, which only reduces what the operator's permits
    endpoint          text,                                -- of the last delivery
    registration      jsonb,                               -- summary of its registration document (ledger.Registration)
    server_info       jsonb,
    protocol          text,                                -- MCP revision spoken
    tools             jsonb,
    state             text          NOT NULL DEFAULT 'pending', -- disabled pending connected needs_auth failed
    last_ok_at        timestamptz,
    last_error        text,
    last_error_at     timestamptz,
    failing_since     timestamptz,                         -- first failed call since the last success; null: none failed
    last_called_at    timestamptz,                         -- when the last call was recorded, with any outcome
    totals            jsonb         NOT NULL DEFAULT '{}', -- ended deliveries by status
    -- The counts of agent_hours for the last hour with a call; null: no call yet. They are in this row because every
    -- record updates it anyway: a second row per record would double the cost.
    hour              timestamptz,
    hour_calls        integer       NOT NULL DEFAULT 0,
    hour_failed       integer       NOT NULL DEFAULT 0,
    hour_failures     jsonb         NOT NULL DEFAULT '{}',
    hour_latency      integer[]     NOT NULL DEFAULT '{0,0,0,0,0,0,0,0,0,0,0,0,0,0}',
    created_at        timestamptz   NOT NULL DEFAULT now(),
    updated_at        timestamptz   NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, identity_registry, agent_id)
);

-- The parts in which alerts read the failing and the disabled agents, and the lists and counts of agents by state.
-- Strangers can make many agents, so no list may read all. An update that changes neither failing_since nor state writes
-- neither index. Queries repeat the second condition, which all rows meet: otherwise Postgres could choose the index
-- agents_state to find an agent by its key, and read all of it.
CREATE INDEX agents_failing ON herald.agents (chain_id, identity_registry, agent_id) WHERE failing_since IS NOT NULL;
CREATE INDEX agents_state ON herald.agents (state, chain_id, identity_registry, agent_id) WHERE (state || '') <> '';
-- The look-up by an agent's name (store.AgentRow.Name). The name is cut, because an index entry is limited.
CREATE INDEX agents_name ON herald.agents (lower(left(coalesce(registration ->> 'name', server_info ->> 'name'), 100)) text_pattern_ops);
-- Agents whose order is switched off.
CREATE INDEX agents_unordered ON herald.agents (chain_id, identity_registry, agent_id) WHERE policy ->> 'order' = 'off';

-- list_registries returns the identity registries of a chain that have agents. It jumps from one to the next, because
-- strangers can make many agents. With them, an agent is found by its number.
-- +goose StatementBegin
CREATE FUNCTION herald.list_registries(x_chain bigint) RETURNS SETOF text LANGUAGE sql STABLE AS $$
    WITH RECURSIVE r AS (
        SELECT min(identity_registry) AS registry FROM herald.agents WHERE chain_id = x_chain
        UNION ALL
        SELECT (SELECT min(identity_registry) FROM herald.agents WHERE chain_id = x_chain AND identity_registry > r.registry)
          FROM r WHERE r.registry IS NOT NULL)
    SELECT registry FROM r WHERE registry IS NOT NULL
$$;
-- +goose StatementEnd

-- Calls of agents by hour and outcome, so that no query has to scan attempts. The first record of a later hour copies
-- the counts of the agent's previous hour to this table.
CREATE TABLE herald.agent_hours (
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

-- Each hour is copied once: an agent's hour decreases only after a clock was ahead. An existing row stays, so that no
-- record fails.
-- +goose StatementBegin
CREATE FUNCTION herald.keep_agent_hour() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO herald.agent_hours (hour, chain_id, identity_registry, agent_id, calls, failed, failures, latency)
    VALUES (OLD.hour, OLD.chain_id, OLD.identity_registry, OLD.agent_id, OLD.hour_calls, OLD.hour_failed, OLD.hour_failures, OLD.hour_latency)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER keep_agent_hour AFTER UPDATE OF hour ON herald.agents
    FOR EACH ROW WHEN (OLD.hour < NEW.hour) EXECUTE FUNCTION herald.keep_agent_hour();

-- Fencing tokens. Each claim draws one; a write under an older token changes nothing.
CREATE SEQUENCE herald.claim_no;

-- History: one row per event, written when the delivery is accepted and when it ends. Readers use the view deliveries.
--
-- The columns from status to finished_at are those of an ended delivery. While a delivery is open, herald.work has the
-- present values. No index covers a column that changes when a delivery ends as delivered, and the fill factor leaves
-- room in the page for the next version of each row: so that update writes no index.
CREATE TABLE herald.history (
    id                uuid          PRIMARY KEY,           -- UUIDv5 (URL name space) of key
    key               text          NOT NULL,              -- unique: see key_hash
    seq               bigint        GENERATED ALWAYS AS IDENTITY, -- order of acceptance
    kind              text          NOT NULL,
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    order_key         text,                                -- one delivery at a time per agent and client; null after retention if key begins with it
    order_seq         numeric(20,0) NOT NULL,
    order_hash        bigint,                              -- as in work
    bulk              boolean       NOT NULL DEFAULT false,-- of a backfill: its tasks go to the lane bulk
    job               jsonb,                               -- deleted by retention; contains no secrets
    secret_headers    bytea,                               -- action.endpoint.headers, sealed
    traceparent       text,                                -- W3C, version 00; null: none came, the id determines the trace id
    kept              boolean       NOT NULL DEFAULT true, -- retention has not yet deleted the contents (retain.sql)

    verified          boolean       NOT NULL DEFAULT false,-- accepted while workers verified the chain's events
    bound             boolean       NOT NULL DEFAULT false,-- job was read from the chain; true before the agent is called
    source            text          NOT NULL DEFAULT '',   -- sender of the job's action
    trust             smallint      NOT NULL DEFAULT 0,    -- of that sender (ledger.Trust)
    hints             integer       NOT NULL DEFAULT 0,    -- grows with each hint and each reading of a follower
    corrected         text[],                              -- fields of the jobs that the event contradicts

    tool_name         text,
    endpoint          text,
    file_verification text,
    file_source       text,
    file_disagrees    text[],                              -- its fields that contradict the event; null: none, or not compared
    result            jsonb,
    created_at        timestamptz   NOT NULL DEFAULT now(),

    status            text          NOT NULL DEFAULT 'queued',
    reason            text,
    error             text,
    attempts          integer       NOT NULL DEFAULT 0,
    budget_base       integer       NOT NULL DEFAULT 0,
    fetch_failures    integer       NOT NULL DEFAULT 0,
    replays           integer       NOT NULL DEFAULT 0,
    dispatch          integer       NOT NULL DEFAULT 0,
    called            boolean       NOT NULL DEFAULT false,
    claim_no          bigint,
    accepted_at       timestamptz   NOT NULL DEFAULT now(),
    updated_at        timestamptz   NOT NULL DEFAULT now(),
    finished_at       timestamptz,                         -- null: it is open
    -- status of a delivery that ended without being delivered, for the lists of operators.
    undelivered       text GENERATED ALWAYS AS (CASE WHEN finished_at IS NOT NULL AND status <> 'delivered' THEN status END) STORED,
    undelivered_at    timestamptz GENERATED ALWAYS AS (CASE WHEN status <> 'delivered' THEN finished_at END) STORED, -- when it so ended
    CONSTRAINT history_status CHECK (status IN ('queued', 'delivered', 'skipped', 'rejected', 'dead', 'cancelled'))
) WITH (fillfactor = 60);

-- key_hash is the key as 128 bits of its SHA-256: an index of the keys themselves would be five times as large.
-- +goose StatementBegin
CREATE FUNCTION herald.key_hash(key text) RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT encode(substring(sha256(key::bytea) FOR 16), 'hex')::uuid
$$;
-- +goose StatementEnd
CREATE UNIQUE INDEX history_key ON herald.history (herald.key_hash(key));

-- The lists of operators.
CREATE INDEX history_seq ON herald.history (seq);
CREATE INDEX history_undelivered ON herald.history (undelivered, seq DESC) WHERE undelivered IS NOT NULL;
CREATE INDEX history_reason ON herald.history (undelivered, reason, seq DESC) WHERE undelivered IS NOT NULL;
CREATE INDEX history_ended ON herald.history (undelivered, undelivered_at DESC) INCLUDE (seq) WHERE undelivered IS NOT NULL;
CREATE INDEX history_agent ON herald.history (chain_id, (agent_id::text), seq DESC);
-- By the client that wrote the feedback, by its transaction, and of the rare kinds. The client is the third part of
-- order_key, and of each key that begins with order_key.
CREATE INDEX history_client ON herald.history ((split_part(coalesce(order_key, key), '/', 3)), (seq + 0));
CREATE INDEX history_transaction ON herald.history ((job ->> 'transactionHash')) WHERE job ->> 'transactionHash' IS NOT NULL;
CREATE INDEX history_kind ON herald.history (kind, seq DESC) WHERE kind <> 'NewFeedback';
-- Deliveries that retention has not yet processed. Its statement repeats the expression.
CREATE INDEX history_kept ON herald.history ((seq + 0)) WHERE kept;

-- sentence returns an error without its URLs and without its words that contain a digit (ids, hashes, addresses, numbers).
-- Errors with one cause have one sentence. An error is from strangers, so only its beginning counts.
-- +goose StatementBegin
CREATE FUNCTION herald.sentence(error text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(left(coalesce(error, ''), 300), '[a-z]+://[^[:space:]"'']+|[[:alnum:]._:/+-]*[0-9][[:alnum:]._:/+-]*', '#', 'g')
$$;
-- +goose StatementEnd

-- Open work: one row per delivery that has not ended, which is deleted when the delivery ends.
--
-- Each look-up of the delivery path has one index. Claims and extensions of a lease change no indexed column, so they
-- write no index (the generated column state has one value for dispatched and running deliveries).
CREATE TABLE herald.work (
    id                uuid          PRIMARY KEY,
    seq               bigint        NOT NULL,
    key               text          NOT NULL,
    kind              text          NOT NULL,
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    order_key         text          NOT NULL,
    order_seq         numeric(20,0) NOT NULL,
    bulk              boolean       NOT NULL DEFAULT false,
    verified          boolean       NOT NULL DEFAULT false,
    bound             boolean       NOT NULL DEFAULT false,

    status            text          NOT NULL DEFAULT 'queued',
    reason            text,
    error             text,
    place             text          GENERATED ALWAYS AS (
        CASE WHEN status = 'queued' AND handed_at IS NULL      THEN 'line' -- in Postgres only: the agent's backlog
             WHEN status IN ('queued', 'running')              THEN 'out'  -- its task is in Redis, or a worker has claimed it
             WHEN status = 'waiting' AND handed_at IS NOT NULL THEN 'task' -- waits with a task in Redis
             ELSE status END) STORED,
    attempts          integer       NOT NULL DEFAULT 0,
    budget_base       integer       NOT NULL DEFAULT 0,    -- attempts made before the present budget
    fetch_failures    integer       NOT NULL DEFAULT 0,    -- failed fetches of the feedback file in the present budget
    replays           integer       NOT NULL DEFAULT 0,    -- how often an operator replayed it
    dispatch          integer       NOT NULL DEFAULT 0,    -- n of the newest task
    handed_at         timestamptz,                         -- when task n went to Redis; null: no task in Redis
    called            boolean       NOT NULL DEFAULT false,-- a call is known to have been written to the agent
    claim_no          bigint,
    claimed_at        timestamptz,                         -- start of the running attempt, number attempts; null: none runs
    lease_until       timestamptz,
    next_attempt_at   timestamptz,
    -- Hash of the ordering key. A response has none: it has a hash of its feedback's key, or of its agent (see
    -- internal/store/sql/parts). Null: the delivery waits for no other one.
    order_hash        bigint,
    -- The delivery has the turn of its ordering key; valid while place = 'out'.
    turn              boolean       NOT NULL DEFAULT false,
    delays_until      timestamptz,                         -- it delays later ones of its ordering key; null: it delays none
    accepted_at       timestamptz   NOT NULL DEFAULT now(),-- as created_at, or when it was queued anew: expiry counts from here
    updated_at        timestamptz   NOT NULL DEFAULT now(),
    finished_at       timestamptz,                         -- set by a statement that ends the delivery: see end_work
    CONSTRAINT work_status CHECK (status IN ('queued', 'running', 'waiting', 'held') OR finished_at IS NOT NULL),
    CONSTRAINT work_waiting CHECK (status <> 'waiting' OR next_attempt_at IS NOT NULL),
    CONSTRAINT work_running CHECK (CASE WHEN status = 'running' THEN claim_no IS NOT NULL AND lease_until IS NOT NULL AND claimed_at IS NOT NULL
                                        ELSE claimed_at IS NULL OR finished_at IS NOT NULL END)
) WITH (fillfactor = 60);

-- An agent's deliveries by state: the next to dispatch (those of a backfill last, so that a new event does not wait for
-- events of past years), the dispatched ones, of which it may have 8, and the held ones.
CREATE INDEX work_agent ON herald.work (place, chain_id, identity_registry, agent_id, bulk, (seq + 0));
-- The deliveries of an ordering key, and the responses that wait for a feedback (docs/design/ledger.md). Held ones delay
-- no other and may be many, so that queries omit them.
CREATE INDEX work_order ON herald.work (order_hash, order_seq, seq) WHERE order_hash IS NOT NULL AND place <> 'held';
-- The deliveries that wait for another one with the same order_hash, in the order in which it releases them: responses
-- in the order of acceptance. Queries repeat the expressions.
CREATE INDEX work_behind ON herald.work (order_hash, (CASE kind WHEN 'ResponseAppended' THEN 0 ELSE order_seq END), kind DESC, seq)
    WHERE (place || reason) = 'waitingbehind_earlier';
-- Waiting deliveries without a task in Redis. Queries repeat the expression, which the index work_agent cannot answer.
CREATE INDEX work_due ON herald.work (next_attempt_at) WHERE (place || '') = 'waiting';
-- Held deliveries by reason. Strangers can make many: those of an agent that requires a credential are held. Queries repeat
-- the expression. Only held deliveries write this index.
CREATE INDEX work_held ON herald.work (reason, chain_id, identity_registry, agent_id) WHERE (place || '') = 'held';
-- The lists of operators, and expiry.
CREATE INDEX work_seq ON herald.work (seq);

-- end_work moves a delivery that a statement has ended to the history. record.sql does the same without the trigger.
-- +goose StatementBegin
CREATE FUNCTION herald.end_work() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM herald.work WHERE id = NEW.id;
    UPDATE herald.history
       SET status = NEW.status, reason = NEW.reason, error = NEW.error, attempts = NEW.attempts, budget_base = NEW.budget_base,
           fetch_failures = NEW.fetch_failures, replays = NEW.replays, dispatch = NEW.dispatch, called = NEW.called, claim_no = NEW.claim_no,
           order_hash = NEW.order_hash, accepted_at = NEW.accepted_at, updated_at = now(), finished_at = NEW.finished_at
     WHERE id = NEW.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER end_work AFTER UPDATE OF finished_at ON herald.work
    FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL) EXECUTE FUNCTION herald.end_work();

-- Deliveries for readers: the open ones, the ended ones, and all.
CREATE VIEW herald.open_deliveries AS
SELECT w.id, h.key, w.seq, w.kind, w.chain_id, w.identity_registry, w.agent_id, w.order_key, w.order_seq, w.bulk, h.job, h.secret_headers,
       h.traceparent, h.verified, w.bound, h.source, h.trust, h.hints, h.corrected, w.status, w.reason, w.place, h.undelivered, h.undelivered_at, w.attempts, w.budget_base,
       w.fetch_failures, w.replays, w.dispatch, w.handed_at, w.called, w.claim_no, w.lease_until, w.next_attempt_at, w.order_hash, w.turn,
       w.delays_until, h.tool_name, h.endpoint, h.file_verification, h.file_source, h.file_disagrees, h.result, w.error, w.accepted_at,
       h.created_at, w.updated_at, w.finished_at
  FROM herald.work w JOIN herald.history h ON h.id = w.id;

CREATE VIEW herald.ended_deliveries AS
SELECT id, key, seq, kind, chain_id, identity_registry, agent_id, coalesce(order_key, key) AS order_key, order_seq, bulk, job, secret_headers,
       traceparent, verified, bound, source, trust, hints, corrected, status, reason, status AS place, undelivered, undelivered_at, attempts, budget_base,
       fetch_failures, replays, dispatch, NULL::timestamptz AS handed_at, called, claim_no, NULL::timestamptz AS lease_until,
       NULL::timestamptz AS next_attempt_at, order_hash, false AS turn,
       NULL::timestamptz AS delays_until, tool_name, endpoint, file_verification, file_source, file_disagrees, result, error, accepted_at,
       created_at, updated_at, finished_at
  FROM herald.history WHERE finished_at IS NOT NULL;

CREATE VIEW herald.deliveries AS
SELECT * FROM herald.open_deliveries UNION ALL SELECT * FROM herald.ended_deliveries;

-- Attempts that have ended. The record inserts the row. While an attempt runs, only work stores it (attempts,
-- claimed_at). A statement that takes a claim away inserts its attempt without an outcome
-- (internal/store/sql/parts/lost.sql). No foreign key: retention drops whole weeks.
CREATE TABLE herald.attempts (
    delivery_id uuid        NOT NULL,
    number      integer     NOT NULL,
    started_at  timestamptz NOT NULL,
    duration_ms integer,
    step_us     integer[],            -- µs of check, resolve, fetch, connect, compose and call, up to the last step that began
    stage       text        NOT NULL, -- last stage reached: claim check resolve fetch compose call record
    outcome     text,                 -- the resulting status; null: unknown, because its claim was taken away
    reason      text,
    error       text,
    arguments   jsonb,                -- as sent, at most 16 KiB; {"truncated": true, …} when cut
    response    jsonb,                -- as received, with the same limit
    protocol    text,
    PRIMARY KEY (delivery_id, number, started_at)
) PARTITION BY RANGE (started_at);

CREATE TABLE herald.attempts_default PARTITION OF herald.attempts DEFAULT;

-- The default partition is not dropped; retention deletes its old rows.
CREATE INDEX attempts_default_started ON herald.attempts_default (started_at);

-- ensure_attempt_partitions creates the partitions for the week of "at" and the "ahead" weeks after it, named
-- attempts_yyyymmdd after their Monday. It returns how many it created and leaves existing partitions unchanged. A week
-- that has rows in the default partition gets none: Postgres would reject it. The function creates a table and then
-- attaches it, with a short lock timeout: CREATE … PARTITION OF would block every worker while it waits for its lock.
-- +goose StatementBegin
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

-- Hints: where jobs say that the event of a delivery's key is (docs/design/chain.md). The check reads the event there.
-- The first job of a key is in deliveries. When a second job differs, both become rows of this table, at most 8 for
-- each delivery, 2 for each API token and 2 for Redis.
CREATE TABLE herald.hints (
    delivery_id    uuid        NOT NULL,
    rank           integer     NOT NULL,               -- order of arrival; 0: the delivery's first job
    job            jsonb       NOT NULL,
    secret_headers bytea,                              -- as in deliveries
    source         text        NOT NULL,
    trust          smallint    NOT NULL,
    refuted        boolean     NOT NULL DEFAULT false, -- the chain does not have the event there
    review_at      timestamptz,                        -- when a worker reads the event of the ended delivery again; null: never
    created_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (delivery_id, rank)
);
CREATE INDEX hints_review ON herald.hints (review_at) WHERE review_at IS NOT NULL;

-- The chains whose events a worker verifies. Each worker updates seen_at every few seconds.
CREATE TABLE herald.verified_chains (
    chain_id bigint      PRIMARY KEY,
    seen_at  timestamptz NOT NULL DEFAULT now()
);

-- How far each contract of a chain has been read. A contract has one cursor, and a backfill has one for all of its
-- contracts until it ends.
CREATE TABLE herald.chain_cursors (
    chain_id        bigint      NOT NULL,
    contracts       text        NOT NULL,              -- lower-case address; those of a backfill are separated by commas
    backfill        text        NOT NULL,              -- the blocks of a backfill as text; '' for the cursor of a contract
    start_block     bigint      NOT NULL DEFAULT 0,    -- after a reorg deeper than the stored blocks, reading restarts here
    next_block      bigint      NOT NULL,
    end_block       bigint,                            -- the last block of a backfill
    blocks          jsonb       NOT NULL DEFAULT '[]', -- [{number, hash}, …], newest last, to find where a reorg began
    head_block      bigint      NOT NULL DEFAULT 0,    -- the node's newest block at the last move, for the lag
    finalized_block bigint      NOT NULL DEFAULT 0,    -- 0: unknown
    settled_block   bigint      NOT NULL DEFAULT 0,    -- no reorg is expected to replace it
    -- Detects concurrent moves: after a reorg, next_block may have the same value again.
    moves           bigint      NOT NULL DEFAULT 0,
    reorgs          bigint      NOT NULL DEFAULT 0,    -- how often blocks were read again
    -- Up to which block the nodes are known to have left out no logs (chain.Checks); null: blocks are checked before
    -- they are accepted, or never.
    checks          jsonb,
    stalled_since   timestamptz,                       -- since when no block could be read; null: blocks are read
    stalled_why     text,
    updated_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (chain_id, contracts, backfill)
);

-- is_followed reports whether the cursor of a contract has read a block. Then only that cursor decides which of the
-- block's events a reorg removed, and a backfill of the block does not.
-- +goose StatementBegin
CREATE FUNCTION herald.is_followed(x_chain bigint, x_contract text, x_block bigint) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM herald.chain_cursors
                    WHERE chain_id = x_chain AND contracts = x_contract AND backfill = '' AND start_block <= x_block AND next_block > x_block)
$$;
-- +goose StatementEnd

-- Remembered events: which delivery came from which block that a reorg may still replace, so that Herald finds the
-- deliveries of replaced blocks.
--
--   canonical  the event is on the chain as far as the chain was read
--   orphaned   its block was replaced, and the new blocks are not yet read up to the head
--   checked    a worker's check found it in a block that its contract's cursor had not read
--   gone       the new blocks do not have it either, and its delivery had ended or its agent was called; its key may
--              be used by another event
--
-- Rows of settled blocks are deleted, except those with the state gone.
CREATE TABLE herald.chain_events (
    delivery_id  uuid   PRIMARY KEY,
    chain_id     bigint NOT NULL,
    contract     text   NOT NULL, -- the address that emitted the event, in lower case
    block_number bigint NOT NULL,
    state        text   NOT NULL DEFAULT 'canonical' CHECK (state IN ('canonical', 'orphaned', 'checked', 'gone'))
);
CREATE INDEX chain_events_block ON herald.chain_events (chain_id, contract, block_number);
CREATE INDEX chain_events_orphaned ON herald.chain_events (chain_id, contract) WHERE state = 'orphaned';

-- Transfers of agents to new owners, as read off the chain. A credential that was stored for the previous owner stays;
-- the table shows that the owner has changed since.
CREATE TABLE herald.agent_transfers (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    transaction_hash  text          NOT NULL,
    log_index         bigint        NOT NULL,
    block_number      bigint        NOT NULL,
    from_address      text          NOT NULL,
    to_address        text          NOT NULL,
    at                timestamptz   NOT NULL, -- timestamp of the block
    PRIMARY KEY (chain_id, identity_registry, agent_id, transaction_hash, log_index)
);
-- The transfers in blocks that a reorg replaced.
CREATE INDEX agent_transfers_block ON herald.agent_transfers (chain_id, identity_registry, block_number);

-- Credentials that operators stored for agents.
CREATE TABLE herald.agent_mcp_tokens (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    origin            text          NOT NULL,
    -- A token is sent to this path of its origin and the paths below it. Null: the first delivery to the registered URL
    -- sets the path.
    path              text,
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

-- Access tokens that workers obtained with a stored OAuth credential. All workers share them, and one at a time renews
-- them. They are separate from agent_mcp_tokens, whose rows change only when an operator stores a credential.
CREATE TABLE herald.agent_mcp_access (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    origin            text          NOT NULL,
    ciphertext        bytea,                    -- null: none was obtained yet
    key_id            bigint,
    expires_at        timestamptz,              -- null: the authorization server set no expiry
    renew_no          bigint        NOT NULL DEFAULT 0, -- number of the last renewal that began; a write names it
    renewing_until    timestamptz,              -- lease of the renewal; after that time another worker may begin one
    PRIMARY KEY (chain_id, identity_registry, agent_id, origin),
    FOREIGN KEY (chain_id, identity_registry, agent_id, origin) REFERENCES herald.agent_mcp_tokens ON DELETE CASCADE
);

-- Keys that sign requests to agents (HERALD_PUBLIC_URL). All workers sign with the same key and publish the same
-- directory. The table has few rows: a rotation adds a key and deletes those that are no longer published.
CREATE TABLE herald.signing_keys (
    id           text        PRIMARY KEY,            -- RFC 7638 thumbprint of the public key, the keyid of signatures
    ciphertext   bytea       NOT NULL,               -- the Ed25519 seed, sealed with the keyset for this id
    created_at   timestamptz NOT NULL DEFAULT now(), -- published since
    activates_at timestamptz NOT NULL,               -- signs from then on, until a younger key does
    retires_at   timestamptz                         -- published until then; null: the youngest key
);

-- Running workers, with the ids of the keys that each has loaded. A rotation of keys reads it.
CREATE TABLE herald.workers (
    id         uuid        PRIMARY KEY, -- id of the process, created at its start
    host       text        NOT NULL,    -- shown to operators
    key_ids    bigint[]    NOT NULL,    -- keys with which it can decrypt
    seals_with bigint      NOT NULL,    -- the one of them with which it encrypts
    seen_at    timestamptz NOT NULL DEFAULT now() -- the worker updates it every few seconds
);

-- Tokens of the HTTP API. The secret part is never stored; 256 random bits need no slow hash.
CREATE TABLE herald.api_tokens (
    id           text        PRIMARY KEY,     -- the token's first part
    name         text        NOT NULL,        -- name of the user, for the audit
    scopes       text[]      NOT NULL,        -- read enqueue operate
    hash         bytea       NOT NULL,        -- SHA-256 of the secret part
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,                 -- null: never
    revoked_at   timestamptz,                 -- null: not revoked
    last_used_at timestamptz                  -- with a resolution of one minute
);

-- Operators' actions on many deliveries at once.
CREATE TABLE herald.audit (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL DEFAULT now(),
    actor       text        NOT NULL,
    action      text        NOT NULL,
    filter      jsonb,                              -- selects the deliveries
    matched     bigint      NOT NULL DEFAULT 0,     -- number of selected deliveries when the action began
    moved       bigint      NOT NULL DEFAULT 0,     -- number of changed deliveries
    state       text        NOT NULL DEFAULT 'running', -- running done cancelled failed
    finished_at timestamptz,
    note        text
);

-- Each change of a delivery's status, except to running, for GET /v1/events. Readers read in the order of (xid, id), up
-- to the oldest open transaction (pg_snapshot_xmin): so they never miss a row that is committed late, which could
-- happen with a plain sequence.
CREATE TABLE herald.delivery_events (
    xid         xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id          bigint      GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT now(),
    delivery_id uuid        NOT NULL,
    status      text        NOT NULL,
    reason      text,
    attempts    integer     NOT NULL,
    PRIMARY KEY (xid, id)
);

-- +goose StatementBegin
CREATE FUNCTION herald.note_delivery_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.finished_at IS NULL THEN
        INSERT INTO herald.delivery_events (delivery_id, status, reason, attempts)
        SELECT id, status, reason, attempts FROM herald.work
         WHERE id = NEW.id AND status = NEW.status AND reason IS NOT DISTINCT FROM NEW.reason;
    ELSE
        INSERT INTO herald.delivery_events (delivery_id, status, reason, attempts)
        SELECT id, status, reason, attempts FROM herald.history
         WHERE id = NEW.id AND status = NEW.status AND reason IS NOT DISTINCT FROM NEW.reason AND finished_at IS NOT NULL;
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
-- An event is written when the transaction commits, if the delivery still has the status and the reason then. A claim is
-- not an event: it would double the number of rows, and only says that a worker has begun.
CREATE CONSTRAINT TRIGGER note_delivery_event AFTER UPDATE OF status, reason ON herald.work DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.status <> 'running' AND NEW.finished_at IS NULL
          AND (OLD.status IS DISTINCT FROM NEW.status OR OLD.reason IS DISTINCT FROM NEW.reason))
    EXECUTE FUNCTION herald.note_delivery_event();
-- Ended, or queued again.
CREATE CONSTRAINT TRIGGER note_delivery_event AFTER UPDATE OF status, reason ON herald.history DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status OR OLD.reason IS DISTINCT FROM NEW.reason)
    EXECUTE FUNCTION herald.note_delivery_event();

-- Deliveries that became dead or held since the last check for alerts (HERALD_ALERT_URL), counted by agent and reason.
-- Every transaction that ends or holds deliveries has locked their agent, so only the check competes for the lock on an
-- agent's counter.
CREATE TABLE herald.mishaps (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    status            text          NOT NULL, -- dead held
    reason            text          NOT NULL, -- '': none
    count             bigint        NOT NULL DEFAULT 1,
    deliveries        uuid[]        NOT NULL, -- the first 20
    PRIMARY KEY (chain_id, identity_registry, agent_id, status, reason)
) WITH (fillfactor = 50);

-- note_mishap counts a delivery when its transaction commits, if it is still dead or held then. So a delivery is counted
-- once even if the transaction commits late, and a transaction that holds a delivery and releases it at once raises no
-- alert.
-- +goose StatementBegin
CREATE FUNCTION herald.note_mishap() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO herald.mishaps AS m (chain_id, identity_registry, agent_id, status, reason, deliveries)
    SELECT NEW.chain_id, NEW.identity_registry, NEW.agent_id, NEW.status, coalesce(NEW.reason, ''), ARRAY[NEW.id]
     WHERE CASE WHEN NEW.finished_at IS NULL THEN EXISTS (SELECT FROM herald.work WHERE id = NEW.id AND status = NEW.status)
                ELSE EXISTS (SELECT FROM herald.history WHERE id = NEW.id AND status = NEW.status AND finished_at IS NOT NULL) END
    ON CONFLICT (chain_id, identity_registry, agent_id, status, reason) DO UPDATE
       SET count = m.count + 1,
           deliveries = CASE WHEN cardinality(m.deliveries) < 20 THEN m.deliveries || excluded.deliveries ELSE m.deliveries END
     WHERE NOT m.deliveries @> excluded.deliveries; -- released and held again
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE CONSTRAINT TRIGGER note_mishap AFTER UPDATE OF status ON herald.work DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.status = 'held' AND OLD.status <> NEW.status) EXECUTE FUNCTION herald.note_mishap();
CREATE CONSTRAINT TRIGGER note_mishap AFTER UPDATE OF status ON herald.history DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (NEW.status = 'dead' AND OLD.status <> NEW.status) EXECUTE FUNCTION herald.note_mishap();

-- Agents for which a problem was reported; only a change is reported again.
CREATE TABLE herald.alerted_agents (
    chain_id          bigint        NOT NULL,
    identity_registry text          NOT NULL,
    agent_id          numeric(78,0) NOT NULL,
    state             text          NOT NULL CHECK (state IN ('failing', 'disabled')),
    failing_since     timestamptz,            -- the agent's failing_since at the time of the alert
    PRIMARY KEY (chain_id, identity_registry, agent_id)
);

-- The outbox of alerts: one row is one post, kept until the receiver has accepted it.
CREATE TABLE herald.alerts (
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
    error             text                    -- of the last failed attempt
);
CREATE INDEX alerts_due ON herald.alerts (next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX alerts_created ON herald.alerts (created_at);
CREATE INDEX alerts_agent ON herald.alerts (chain_id, identity_registry, agent_id, kind, created_at);

-- The result table of the backend that Herald replaces, as a view: one row per attempt that has ended. Deliveries
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
  JOIN herald.deliveries d ON d.id = a.delivery_id;
