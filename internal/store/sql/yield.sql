-- yield: return a due delivery to its agent's backlog if the agent has no free slot.
--
-- Waiting deliveries do not count towards the limit of dispatched ones, so claiming this one could exceed it. The claim
-- that follows in the batch then returns no row. The agent's next recorded outcome frees a slot, and the oldest
-- delivery of the backlog, usually this one, is dispatched.
--
-- $1 delivery id   $2 n   $3 tolerance for clock differences (interval)
-- $4 how many deliveries of an agent may be dispatched (8); half of that for a backfill's
UPDATE herald.deliveries d
   SET status = 'queued', reason = NULL, handed_at = NULL, next_attempt_at = NULL, updated_at = now()
 WHERE id = $1
   AND dispatch = $2
   AND status = 'waiting' AND handed_at IS NOT NULL AND next_attempt_at <= now() + $3::interval
   AND (SELECT count(handed_at) FROM herald.deliveries o
         WHERE o.chain_id = d.chain_id AND o.identity_registry = d.identity_registry AND o.agent_id = d.agent_id
           AND o.place = 'out') >= $4::int / CASE WHEN d.bulk THEN 2 ELSE 1 END
