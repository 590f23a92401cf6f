-- give_back: what claim_followers.sql took and no call was made with, or none that the agent looked at, stands where it
-- stood before: no attempt was made. What waited behind an earlier one of its client waits on while there is one.
--
-- $1 ids uuid[], $2 claim_nos bigint[], $3 blocked boolean[]: as claim_followers.sql returned them
-- $4 started_at, which the attempts have in common
--
-- The agent is locked. A claim that was lost gives nothing back.
-- Each row is found in a LATERAL subquery, by its key, so that no statistics can make another plan of that.
WITH given AS MATERIALIZED (
    SELECT d.id, d.attempts,
           CASE WHEN u.blocked THEN herald.order_wait(id, chain_id, identity_registry, agent_id, kind, key, order_key, order_seq) END AS look
      FROM unnest($1::uuid[], $2::bigint[], $3::boolean[]) AS u(given, claim_no, blocked)
     CROSS JOIN LATERAL (SELECT id, attempts, chain_id, identity_registry, agent_id, kind, key, order_key, order_seq
                           FROM herald.deliveries
                          WHERE id = u.given AND deliveries.claim_no = u.claim_no AND status = 'running' OFFSET 0 FOR NO KEY UPDATE) d
), back AS (
    UPDATE herald.deliveries d
       SET status          = CASE WHEN g.look IS NOT NULL THEN 'waiting' ELSE 'queued' END,
           reason          = CASE WHEN g.look IS NOT NULL THEN 'behind_earlier' END,
           next_attempt_at = CASE WHEN g.look IS NOT NULL THEN g.look END,
           claim_no        = nextval('herald.claim_no'),
           attempts        = d.attempts - 1,
           dispatch        = dispatch - 1, -- which no task has had
           handed_at       = NULL, lease_until = NULL, updated_at = now()
      FROM given g
     CROSS JOIN LATERAL (SELECT ctid AS found FROM herald.deliveries WHERE id = g.id OFFSET 0) o
     WHERE d.ctid = o.found
    RETURNING d.id
), freed AS (
    DELETE FROM herald.attempts a
     USING (SELECT w.tableoid AS week, w.ctid AS found
              FROM given g
             CROSS JOIN LATERAL (SELECT tableoid, ctid FROM herald.attempts
                                  WHERE delivery_id = g.id AND number = g.attempts AND started_at = $4 AND outcome IS NULL OFFSET 0) w) f
     WHERE a.ctid = f.found AND a.tableoid = f.week
)
SELECT count(*) FROM back
