-- claim_group: claim several deliveries as claim.sql claims one, in one statement and one commit.
--
-- Only tasks with n = 1 of queued deliveries can be claimed here. A waiting delivery needs a free slot (yield.sql) and
-- may have an attempt without an outcome.
--
-- $1 delivery ids uuid[], each once   $2 lease (interval)   $3 how long an agent's success counts (interval)
--
-- Each row has its own conditions, claim number and attempt, as in claim.sql with n = 1. The answer omits rows that are
-- refused or locked by another transaction; the caller claims those one by one. The statement waits for no lock, so it
-- cannot be part of a deadlock with a transaction that locks agents first.
--
-- The plan is the same for every table size: "= ANY" of an array allows only an index on id, and Postgres cannot turn a
-- LATERAL with LIMIT into another join. All attempts begin at the statement's now(), so they go into one partition.
-- Returns claim.sql's columns, then the id. plan_test.go and claim_group_test.go keep the two statements in step.
WITH ready AS MATERIALIZED (
    SELECT id
      FROM herald.deliveries
     WHERE id = ANY($1::uuid[])
       AND dispatch = 1
       AND handed_at IS NOT NULL
       AND status = 'queued'
       FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE herald.deliveries
       SET status          = 'running',
           reason          = NULL,
           claim_no        = nextval('herald.claim_no'),
           lease_until     = now() + $2::interval,
           next_attempt_at = NULL,
           attempts        = attempts + 1,
           updated_at      = now()
     WHERE id = ANY(ARRAY(SELECT id FROM ready))
    RETURNING id, claim_no, attempts, budget_base, fetch_failures, replays, lease_until, job, secret_headers, key, kind,
              created_at, called, chain_id, identity_registry, agent_id, hints, bound, verified, source, trust, corrected, traceparent, order_key, order_seq
), attempt AS (
    INSERT INTO herald.attempts (delivery_id, number, started_at, stage)
    SELECT id, attempts, now(), 'claim' FROM claimed
    RETURNING tableoid::regclass::text AS week
)
SELECT c.claim_no, c.attempts, now() AS started_at, c.lease_until, c.job, c.secret_headers, c.key, c.kind, c.created_at,
       c.called, c.chain_id, c.identity_registry, c.agent_id::text,
       coalesce(g.epoch, 0) AS epoch, coalesce(g.enabled, true) AS enabled,
       c.budget_base, c.fetch_failures, c.replays > 0 AS replay, coalesce(g.policy, '{}') AS policy, coalesce(g.protocol, '') AS protocol,
       coalesce(g.last_ok_at > now() - $3::interval, false) AS succeeded, (SELECT week FROM attempt LIMIT 1) AS week, c.hints, c.bound, c.verified, c.source, c.trust, c.corrected,
       coalesce(c.traceparent, '') AS traceparent,
       coalesce(ahead.order_seq::text, '') AS ahead_of, g.preferences, c.id
  FROM claimed c
  LEFT JOIN LATERAL (
       SELECT epoch, enabled, policy, protocol, last_ok_at, preferences
         FROM herald.agents
        WHERE chain_id = c.chain_id AND identity_registry = c.identity_registry AND agent_id = c.agent_id
        LIMIT 1) g ON true
  LEFT JOIN LATERAL (
       SELECT order_seq FROM herald.deliveries -- an open earlier delivery of its ordering key that no longer blocks it
        WHERE hashtextextended(order_key, 0) = hashtextextended(c.order_key, 0) AND order_seq < c.order_seq
          AND holds_until IS NOT NULL AND finished_at IS NULL AND holds_until <= now() AND order_key = c.order_key AND replays = 0
        ORDER BY order_seq LIMIT 1) ahead ON true
