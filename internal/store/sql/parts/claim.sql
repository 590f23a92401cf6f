-- claim: claim the deliveries ROWS (id, waited). Each gets a claim number and a lease. "answer" has a row for each.
--
-- @lease (interval)   @recent: how long an agent's success counts (interval)
--
-- A delivery may have waited in a backlog for longer than it delays others (parts/delays_until.sql). So its first claim,
-- with which its check begins, delays them for 10 s again.
--
-- A member (claim_members.sql) has no task, so the claim gives it the next dispatch number and the turn. The
-- attempt is counted before the call, so that a process that dies during the call leaves a trace (parts/lost.sql):
-- unfinished is the number of the last earlier attempt without an outcome, 0: none.
--
-- Plan: "= ANY" of an array allows only an index on id, and Postgres cannot turn a LATERAL with LIMIT into another
-- join. So the plan is the same for every table size.
claimed AS (
    UPDATE herald.work
       SET status          = 'running',
           reason          = NULL,
           claim_no        = nextval('herald.claim_no'),
           delays_until    = CASE WHEN claim_no IS NULL AND delays_until < now() + interval '10 s' THEN now() + interval '10 s' ELSE delays_until END,
           dispatch        = dispatch + CASE WHEN handed_at IS NULL THEN 1 ELSE 0 END,
           turn            = CASE WHEN handed_at IS NULL THEN order_hash IS NOT NULL ELSE turn END,
           claimed_at      = now(),
           lease_until     = now() + @lease::interval,
           next_attempt_at = NULL,
           attempts        = attempts + 1,
           updated_at      = now()
     WHERE id = ANY(ARRAY(SELECT id FROM ROWS))
    RETURNING id, claim_no, dispatch, attempts, budget_base, fetch_failures, replays, lease_until, kind, called,
              chain_id, identity_registry, agent_id, bound, verified, order_hash, order_seq, handed_at IS NULL AS follows, turn OR order_hash IS NULL OR kind = 'ResponseAppended' AS may_call
), answer AS (
    SELECT c.id, c.dispatch, c.claim_no, c.attempts, now() AS started_at, c.lease_until, h.job, h.secret_headers, h.key, c.kind, h.created_at,
           c.called, c.chain_id, c.identity_registry, c.agent_id::text,
           coalesce(g.epoch, 0) AS epoch, coalesce(g.enabled, true) AS enabled,
           c.budget_base, c.fetch_failures, c.replays > 0 AS replay, coalesce(g.policy, '{}') AS policy, coalesce(g.own_policy, '{}') AS own_policy, coalesce(g.protocol, '') AS protocol,
           coalesce(g.last_ok_at > now() - @recent::interval, false) AS succeeded,
           h.hints, c.bound, c.verified, h.source, h.trust, h.corrected, coalesce(h.traceparent, '') AS traceparent,
           coalesce(ahead.order_seq::text, '') AS ahead_of, c.may_call, r.waited,
           CASE WHEN c.attempts > 1 THEN (SELECT coalesce(max(number), 0) FROM herald.attempts WHERE delivery_id = c.id AND outcome IS NULL)
                ELSE 0 END AS unfinished
      FROM claimed c
      JOIN ROWS r ON r.id = c.id
     CROSS JOIN LATERAL (
           SELECT job, secret_headers, key, created_at, hints, source, trust, corrected, traceparent
             FROM herald.history WHERE id = c.id LIMIT 1) h
      LEFT JOIN LATERAL (
           SELECT epoch, enabled, policy, own_policy, protocol, last_ok_at
             FROM herald.agents
            WHERE chain_id = c.chain_id AND identity_registry = c.identity_registry AND agent_id = c.agent_id
            LIMIT 1) g ON true
      LEFT JOIN LATERAL (
           SELECT order_seq FROM herald.work -- the first open earlier delivery of its ordering key that no longer delays it
            WHERE order_hash = c.order_hash AND order_seq < c.order_seq AND place <> 'held' AND delays_until <= now() AND NOT c.follows
            ORDER BY order_seq LIMIT 1) ahead ON true
)
