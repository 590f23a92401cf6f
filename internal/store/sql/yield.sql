-- yield: decide about a waiting delivery that is due, before claim.sql claims it. The delivery gets the turn of its
-- ordering key, or it returns to its agent's backlog. The transaction has locked the agent.
--
-- The delivery returns to the backlog in two cases. Another delivery of its ordering key has the turn, or an earlier
-- one delays it (parts/turn.sql). Or the claim would exceed a limit of dispatched deliveries, because waiting
-- deliveries do not count towards these limits. The claim.sql that follows in the batch then returns no row, and
-- dispatch.sql decides when the delivery is next.
--
-- $1 delivery id   $2 n   $3 tolerance for clock differences (interval)
-- $4 how many deliveries of an agent may be dispatched (8); a backfill may use half of them
-- $5 how many of them may be responses (2)
WITH due AS MATERIALIZED (
    SELECT id, chain_id, identity_registry, agent_id, kind, key, order_key, order_hash, order_seq, seq, accepted_at, bulk, bound, verified
      FROM herald.work
     WHERE id = $1 AND dispatch = $2 AND status = 'waiting' AND handed_at IS NOT NULL AND next_attempt_at <= now() + $3::interval
), decided AS MATERIALIZED (
    SELECT id, order_hash IS NOT NULL AND kind <> 'ResponseAppended' AND (bound OR NOT verified) AS takes,
           dispatched >= $4::int / CASE WHEN bulk THEN 2 ELSE 1 END
        OR kind = 'ResponseAppended' AND order_hash IS NOT NULL AND responses >= $5::int
        OR {{turn due}} IS NOT NULL AS waits
      FROM due
     CROSS JOIN LATERAL (SELECT count(handed_at) AS dispatched, count(*) FILTER (WHERE o.kind = 'ResponseAppended') AS responses
                           FROM herald.work o
                          WHERE o.chain_id = due.chain_id AND o.identity_registry = due.identity_registry AND o.agent_id = due.agent_id
                            AND o.place = 'out') n
)
UPDATE herald.work d
   SET status = CASE WHEN waits THEN 'queued' ELSE status END, reason = CASE WHEN NOT waits THEN reason END,
       handed_at = CASE WHEN NOT waits THEN handed_at END, next_attempt_at = CASE WHEN NOT waits THEN next_attempt_at END,
       turn = takes, updated_at = now()
  FROM decided w
 WHERE d.id = w.id AND d.id = $1 AND (waits OR turn <> takes)
