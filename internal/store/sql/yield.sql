-- yield: a wait that is over goes back into its agent's line when the agent has all dispatched that it may have. Waiting rows do not
-- count against the limit of dispatched ones, so a claim of one would be the ninth. The claim that follows then
-- refuses; the next one of the agent's that is recorded makes room, and this one, the oldest, goes first.
--
-- $1 delivery id   $2 n   $3 tolerance for clock differences (interval)   $4 how many an agent may have dispatched (8); a backfill's half of that
UPDATE herald.deliveries d
   SET status = 'queued', reason = NULL, handed_at = NULL, next_attempt_at = NULL, updated_at = now()
 WHERE id = $1
   AND dispatch = $2
   AND status = 'waiting' AND handed_at IS NOT NULL AND next_attempt_at <= now() + $3::interval
   AND (SELECT count(handed_at) FROM herald.deliveries o
         WHERE o.chain_id = d.chain_id AND o.identity_registry = d.identity_registry AND o.agent_id = d.agent_id
           AND o.place = 'out') >= $4::int / CASE WHEN d.bulk THEN 2 ELSE 1 END
