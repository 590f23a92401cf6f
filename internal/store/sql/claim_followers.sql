-- claim_followers: claim more deliveries of a running delivery's agent, to send them in the same batch call.
--
-- The running delivery is the leader, the others are its followers. Each follower gets a claim number, a lease and an
-- attempt of its own, as in claim.sql.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 the leader's id   $5 at most this many
-- $6 lease (interval)   $7 how long an agent's success counts (interval)
-- $8 true: deliveries of one ordering key are sent in order (order_wait)
--
-- lock_agent.sql has locked the agent, so no other transaction dispatches from its backlog. Only a NewFeedback that has
-- the leader's action, no headers of its own and no replay can be a follower. Followers come from two sources:
--   - the backlog: the deliveries that dispatch.sql would dispatch next, those of a backfill last;
--   - for each ordering key of the leader and of these: the open deliveries that come next in order and are in the
--     backlog or waiting (behind_earlier), up to the first that cannot be a follower.
--
-- So the followers of one ordering key are consecutive; step numbers them.
--
-- A follower has no task: handed_at stays null. Therefore it does not count towards the eight deliveries that the agent
-- may have dispatched, and no task of an earlier dispatch can claim it. If the worker dies, the follower's lease
-- expires like that of any other claim.
--
-- The statement reads at most 4 * $5 rows of the backlog. Followers further back wait for their turn. Returns
-- claim.sql's columns, then id, dispatch counter, the number of the last attempt without an outcome (0: none), and
-- whether the delivery was waiting (behind_earlier). Rows are in the order in which they are sent.
WITH leader AS MATERIALIZED (
    SELECT order_key, order_seq, seq, job -> 'action' AS action FROM herald.deliveries WHERE id = $4
), busy AS MATERIALIZED ( -- ordering keys that have a dispatched delivery
    SELECT DISTINCT order_key FROM herald.deliveries
     WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'out' AND $8::boolean
), head AS MATERIALIZED ( -- in the order of the backlog; LIMIT stops the calls of earlier_wait
    SELECT id, order_key, order_seq, seq, bulk
      FROM (SELECT id, order_key, order_seq, seq, bulk, kind, key, secret_headers, replays, job
              FROM herald.deliveries
             WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'line'
             ORDER BY bulk, seq + 0
             LIMIT 4 * $5::int) l
     WHERE kind = 'NewFeedback' AND secret_headers IS NULL AND replays = 0 AND job -> 'action' = (SELECT action FROM leader)
       AND order_key NOT IN (SELECT order_key FROM busy)
       AND (NOT $8::boolean OR herald.earlier_wait($1, $2, $3, kind, key, order_key, order_seq) IS NULL)
     LIMIT $5::int
), behind AS MATERIALIZED (
    SELECT id, order_key, order_seq, seq, bulk
      FROM (SELECT n.*, bool_and(fits) OVER (PARTITION BY n.order_key ORDER BY n.order_seq, n.seq) AS taken
              FROM (SELECT DISTINCT ON (order_key) order_key, order_seq, seq
                      FROM (SELECT order_key, order_seq, seq FROM leader
                            UNION ALL
                            SELECT order_key, order_seq, seq FROM head) s
                     ORDER BY order_key, order_seq, seq) f
             CROSS JOIN LATERAL (
                   SELECT id, order_key, order_seq, seq, bulk,
                          chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND kind = 'NewFeedback'
                          AND secret_headers IS NULL AND replays = 0 AND job -> 'action' = (SELECT action FROM leader)
                          AND (place = 'line' OR place = 'waiting' AND reason = 'behind_earlier' AND handed_at IS NULL) AS fits
                     FROM herald.deliveries
                    WHERE hashtextextended(order_key, 0) = hashtextextended(f.order_key, 0) AND order_seq > f.order_seq
                      AND holds_until IS NOT NULL AND finished_at IS NULL AND order_key = f.order_key
                    ORDER BY order_seq, seq
                    LIMIT $5::int) n) x
     WHERE taken
), chosen AS MATERIALIZED (
    SELECT id, order_key, step, row_number() OVER (ORDER BY late, turn, order_key, step) AS nr
      FROM (SELECT id, order_key, bool_or(bulk) OVER w AS late, max(seq) OVER w AS turn, row_number() OVER w AS step
              FROM (SELECT * FROM head UNION SELECT * FROM behind) c
            WINDOW w AS (PARTITION BY order_key ORDER BY order_seq, seq)) y
     ORDER BY late, turn, order_key, step
     LIMIT $5::int
), locked AS MATERIALIZED (
    SELECT id, status = 'waiting' AS blocked
      FROM herald.deliveries
     WHERE id = ANY(ARRAY(SELECT id FROM chosen))
       AND (status = 'queued' OR status = 'waiting' AND reason = 'behind_earlier') AND handed_at IS NULL -- a condition on place could make Postgres read the whole backlog
       FOR NO KEY UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT id, nr, blocked
      FROM (SELECT c.*, l.blocked, row_number() OVER (PARTITION BY c.order_key ORDER BY c.step) AS got
              FROM chosen c JOIN locked l USING (id)) z
     WHERE got = step -- stops at the first row that another transaction has locked
), claimed AS (
    UPDATE herald.deliveries
       SET status          = 'running',
           reason          = NULL,
           claim_no        = nextval('herald.claim_no'),
           dispatch        = dispatch + 1,
           lease_until     = now() + $6::interval,
           next_attempt_at = NULL,
           attempts        = attempts + 1,
           updated_at      = now()
     WHERE id = ANY(ARRAY(SELECT id FROM taken))
    RETURNING id, dispatch, claim_no, attempts, budget_base, fetch_failures, replays, lease_until, job, secret_headers, key, kind,
              created_at, called, chain_id, identity_registry, agent_id, hints, bound, verified, source, trust, corrected, traceparent
), attempt AS (
    INSERT INTO herald.attempts (delivery_id, number, started_at, stage)
    SELECT id, attempts, now(), 'claim' FROM claimed
    RETURNING tableoid::regclass::text AS week
)
SELECT c.claim_no, c.attempts, now() AS started_at, c.lease_until, c.job, c.secret_headers, c.key, c.kind, c.created_at,
       c.called, c.chain_id, c.identity_registry, c.agent_id::text,
       coalesce(g.epoch, 0) AS epoch, coalesce(g.enabled, true) AS enabled,
       c.budget_base, c.fetch_failures, c.replays > 0 AS replay, coalesce(g.policy, '{}') AS policy, coalesce(g.protocol, '') AS protocol,
       coalesce(g.last_ok_at > now() - $7::interval, false) AS succeeded, (SELECT week FROM attempt LIMIT 1) AS week, c.hints, c.bound, c.verified, c.source, c.trust, c.corrected,
       coalesce(c.traceparent, '') AS traceparent, '' AS ahead_of, g.preferences,
       c.id, c.dispatch,
       CASE WHEN c.attempts > 1 THEN (SELECT coalesce(max(number), 0) FROM herald.attempts WHERE delivery_id = c.id AND outcome IS NULL)
            ELSE 0 END AS unfinished,
       t.blocked
  FROM claimed c
  JOIN taken t USING (id)
  LEFT JOIN LATERAL (
       SELECT epoch, enabled, policy, protocol, last_ok_at, preferences
         FROM herald.agents
        WHERE chain_id = c.chain_id AND identity_registry = c.identity_registry AND agent_id = c.agent_id
        LIMIT 1) g ON true
 ORDER BY t.nr
