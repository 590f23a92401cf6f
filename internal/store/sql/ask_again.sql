-- ask_again: the chain does not show the event where the job of a recorded attempt says, but whoever reads the chain has moved that job
-- meanwhile (move_event.sql): it is queued anew, to be asked about at its new place. It follows record.sql in one transaction.
--
-- $1 delivery id   $2 claim_no   $3 rank of the claim's job
UPDATE herald.deliveries
   SET status = 'queued', reason = NULL, error = NULL, handed_at = NULL, finished_at = NULL, budget_base = attempts, updated_at = now(),
       holds_until = CASE WHEN herald.has_order(kind) THEN timestamptz 'infinity' END
 WHERE id = $1 AND claim_no = $2 AND candidate_rank <> $3 AND status = 'rejected' AND reason = 'event_not_found'
