-- claim_members: claim more deliveries of the agent of a running delivery, to send all of them in one batch call. The
-- running delivery is the leader; the others are its members. parts/claim.sql makes the claims.
--
-- @chain_id, @registry, @agent_id; @leader: the leader's id; @limit: at most this many; @lease, @recent (intervals)
--
-- lock_agent.sql has locked the agent, so no other transaction dispatches from its backlog. A member must be a
-- NewFeedback with the leader's action, without headers of its own, and not replayed. Members come from two sources:
--   - the backlog: the deliveries that dispatch.sql would dispatch next, those of a backfill last;
--   - each ordering key of the leader and of these deliveries: its next open deliveries, if they are in the backlog or
--     waiting (behind_earlier), up to the first one that cannot be a member. A retraction cannot be one, so no delivery
--     behind it follows. Revocations and held deliveries are left out, because they delay none.
--
-- So the members of one ordering key are consecutive (step is their number), and share its turn.
--
-- A member has no task: its handed_at stays null. So it does not count towards the eight deliveries that the agent
-- may have dispatched, and the task of an earlier dispatch cannot claim it. If the worker dies, the member's lease
-- expires like that of any other claim.
--
-- The statement reads at most 4 * limit rows of the backlog; later deliveries are not considered. Returns the columns
-- of claim.sql, in the order in which the deliveries are sent.
WITH leader AS MATERIALIZED (
    SELECT w.order_hash, w.order_seq, w.seq, h.job -> 'action' AS action
      FROM herald.work w JOIN herald.history h ON h.id = w.id WHERE w.id = @leader
), head AS MATERIALIZED ( -- in the order of the backlog; LIMIT ends the evaluation of the conditions
    SELECT id, order_hash, order_seq, seq, bulk
      FROM (SELECT id, chain_id, identity_registry, agent_id, order_key, order_hash, order_seq, seq, accepted_at, bulk, kind, key, replays, true AS bound, true AS verified
              FROM herald.work
             WHERE chain_id = @chain_id AND identity_registry = @registry AND agent_id = @agent_id::text::numeric AND place = 'line'
             ORDER BY bulk, seq + 0
             LIMIT 4 * @limit::int) l
     WHERE kind = 'NewFeedback' AND replays = 0
       AND (SELECT h.secret_headers IS NULL AND h.job -> 'action' = (SELECT action FROM leader) FROM herald.history h WHERE h.id = l.id)
       AND {{turn l}} IS NULL
     LIMIT @limit::int
), behind AS MATERIALIZED (
    SELECT id, order_hash, order_seq, seq, bulk
      FROM (SELECT n.*, bool_and(fits) OVER (PARTITION BY n.order_hash ORDER BY n.order_seq, n.seq) AS taken
              FROM (SELECT DISTINCT ON (order_hash) order_hash, order_seq, seq
                      FROM (SELECT order_hash, order_seq, seq FROM leader
                            UNION ALL
                            SELECT order_hash, order_seq, seq FROM head) s
                     WHERE order_hash IS NOT NULL
                     ORDER BY order_hash, order_seq, seq) f
             CROSS JOIN LATERAL (
                   SELECT id, order_hash, order_seq, seq, bulk,
                          chain_id = @chain_id AND identity_registry = @registry AND agent_id = @agent_id::text::numeric AND kind = 'NewFeedback'
                          AND replays = 0
                          AND (SELECT h.secret_headers IS NULL AND h.job -> 'action' = (SELECT action FROM leader) FROM herald.history h WHERE h.id = w.id)
                          AND (place = 'line' OR place = 'waiting' AND reason = 'behind_earlier') AS fits
                     FROM herald.work w
                    WHERE order_hash = f.order_hash AND order_seq >= f.order_seq AND place <> 'held'
                      AND CASE WHEN kind = 'FeedbackRevoked' THEN delays_until IS NOT NULL ELSE order_seq > f.order_seq END
                    ORDER BY order_seq, seq
                    LIMIT @limit::int) n) x
     WHERE taken
), chosen AS MATERIALIZED (
    SELECT id, group_key, step, row_number() OVER (ORDER BY late, oldest, group_key, step) AS nr
      FROM (SELECT id, group_key, bool_or(bulk) OVER w AS late, max(seq) OVER w AS oldest, row_number() OVER w AS step
              FROM (SELECT *, coalesce(order_hash::text, id::text) AS group_key FROM (SELECT * FROM head UNION SELECT * FROM behind) h) c
            WINDOW w AS (PARTITION BY group_key ORDER BY order_seq, seq)) y
     ORDER BY late, oldest, group_key, step
     LIMIT @limit::int
), locked AS MATERIALIZED (
    SELECT id, status = 'waiting' AS waited
      FROM herald.work
     WHERE id = ANY(ARRAY(SELECT id FROM chosen))
       AND (status = 'queued' OR status = 'waiting' AND reason = 'behind_earlier') AND handed_at IS NULL -- a condition on place could make Postgres read the whole backlog
       FOR NO KEY UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT id, nr, waited
      FROM (SELECT c.*, l.waited, row_number() OVER (PARTITION BY c.group_key ORDER BY c.step) AS got
              FROM chosen c JOIN locked l USING (id)) z
     WHERE got = step -- of each ordering key, up to the first row that another transaction has locked
), {{claim taken}}
SELECT a.* FROM answer a JOIN taken USING (id) ORDER BY nr
