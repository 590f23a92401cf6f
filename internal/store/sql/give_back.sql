-- give_back: undo claims of claim_members.sql with which the agent did nothing: no call was made with the deliveries,
-- or the agent ignored them in the call.
--
-- Each delivery returns to the state before the claim, and its attempt does not count. A delivery that was waiting
-- (behind_earlier) waits again only if it still may not be called (parts/turn.sql).
--
-- $1 ids uuid[], $2 claim_nos bigint[], $3 waited boolean[]: as claim_members.sql returned them
--
-- The transaction has locked the agent, and has taken the turn from these deliveries: otherwise each would wait for the
-- others, although the leader may have ended. A delivery whose claim was lost does not change. Each row is found by its
-- key in a LATERAL subquery, so that old statistics cannot lead to another plan.
WITH given AS MATERIALIZED (
    SELECT d.id,
           CASE WHEN u.blocked THEN {{turn d}} END AS recheck_at
      FROM unnest($1::uuid[], $2::bigint[], $3::boolean[]) AS u(given, claim_no, blocked)
     CROSS JOIN LATERAL (SELECT id, chain_id, identity_registry, agent_id, kind, key, order_key, order_hash, order_seq, seq, accepted_at, true AS bound, true AS verified
                           FROM herald.work
                          WHERE id = u.given AND work.claim_no = u.claim_no AND status = 'running' OFFSET 0 FOR NO KEY UPDATE) d
), back AS (
    UPDATE herald.work d
       SET status          = CASE WHEN g.recheck_at IS NOT NULL THEN 'waiting' ELSE 'queued' END,
           reason          = CASE WHEN g.recheck_at IS NOT NULL THEN 'behind_earlier' END,
           next_attempt_at = CASE WHEN g.recheck_at IS NOT NULL THEN g.recheck_at END,
           claim_no        = CASE WHEN dispatch > 1 THEN nextval('herald.claim_no') END, -- the next claim may be the first one (parts/claim.sql)
           attempts        = d.attempts - 1,
           dispatch        = dispatch - 1, -- no task had this number
           handed_at       = NULL, claimed_at = NULL, lease_until = NULL, updated_at = now()
      FROM given g
     CROSS JOIN LATERAL (SELECT ctid AS found FROM herald.work WHERE id = g.id OFFSET 0) o
     WHERE d.ctid = o.found
    RETURNING d.id, kind, key, chain_id, identity_registry, agent_id, order_key, order_hash, order_seq, finished_at, true AS turn
), {{release back}}
SELECT count(*) FROM back
