-- claim: claim one delivery for one worker and insert its attempt, in one statement and one commit.
--
-- $1 delivery id   $2 n, the task's dispatch counter   $3 lease (interval)   $4 clock tolerance (interval)
-- $5 how long an agent's success counts (interval)
--
-- Claims the row only when the task is the newest one (dispatch = n), still dispatched (handed_at is set: a row that
-- went back to the backlog is not, even if Redis still has its task), and ready: queued, or waiting and due.
--
-- The attempt is counted and its row inserted before the call, so that a process that dies during the call leaves a
-- trace. unfinished.sql, which runs before, reports whether an earlier attempt left one. The statement returns the
-- partition that holds the attempt's row, for record.sql. All times are Postgres' now(). Returns no row when the claim
-- is refused.
WITH claimed AS (
    UPDATE herald.deliveries
       SET status          = 'running',
           reason          = NULL,
           claim_no        = nextval('herald.claim_no'),
           lease_until     = now() + $3::interval,
           next_attempt_at = NULL,
           attempts        = attempts + 1,
           updated_at      = now()
     WHERE id = $1
       AND dispatch = $2
       AND handed_at IS NOT NULL
       AND (status = 'queued' OR (status = 'waiting' AND next_attempt_at <= now() + $4::interval))
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
       coalesce(g.last_ok_at > now() - $5::interval, false) AS succeeded, a.week, c.hints, c.bound, c.verified, c.source, c.trust, c.corrected,
       coalesce(c.traceparent, '') AS traceparent, coalesce(ahead.order_seq::text, '') AS ahead_of, g.preferences
  FROM claimed c
 CROSS JOIN attempt a
  LEFT JOIN herald.agents g USING (chain_id, identity_registry, agent_id)
  LEFT JOIN LATERAL (
       SELECT order_seq FROM herald.deliveries -- an open earlier delivery of its ordering key that no longer blocks it
        WHERE hashtextextended(order_key, 0) = hashtextextended(c.order_key, 0) AND order_seq < c.order_seq
          AND holds_until IS NOT NULL AND finished_at IS NULL AND holds_until <= now() AND order_key = c.order_key AND replays = 0
        ORDER BY order_seq LIMIT 1) ahead ON true
