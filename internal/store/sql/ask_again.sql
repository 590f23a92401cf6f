-- ask_again: requeue a delivery whose event moved while the worker was checking it.
--
-- The worker recorded that the chain does not have the event where its job says (event_not_found). Since the claim, the
-- chain follower has given the delivery a job with the event's new position (move_event.sql), so the delivery is queued
-- again and checked there. Runs after record.sql in the same transaction.
--
-- $1 delivery id   $2 claim_no   $3 rank of the claim's job
UPDATE herald.deliveries
   SET status = 'queued', reason = NULL, error = NULL, handed_at = NULL, finished_at = NULL, budget_base = attempts, updated_at = now(),
       holds_until = CASE WHEN herald.has_order(kind) THEN timestamptz 'infinity' END
 WHERE id = $1 AND claim_no = $2 AND candidate_rank <> $3 AND status = 'rejected' AND reason = 'event_not_found'
