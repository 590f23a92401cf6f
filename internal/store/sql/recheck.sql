-- recheck: queue a delivery again whose event the worker did not find, or found for another agent.
--
-- Runs after record.sql in the same transaction. A hint that arrived after the claim, or a follower, may name the right
-- position: the hint is checked at once, and the attempt costs nothing.
--
-- $1 delivery id   $2 claim_no   $3 the claim's number of hints   $4 true: bind.sql gave it another agent
UPDATE herald.deliveries
   SET status = 'queued', reason = NULL, error = NULL, handed_at = NULL, next_attempt_at = NULL, finished_at = NULL,
       budget_base = attempts, updated_at = now(),
       holds_until = CASE WHEN herald.has_order(kind) THEN timestamptz 'infinity' END
 WHERE id = $1 AND claim_no = $2 AND (hints <> $3 OR $4)
   AND (status = 'rejected' AND reason = 'event_not_found' OR status = 'waiting' AND reason IN ('not_confirmed', 'chain_unavailable'))
