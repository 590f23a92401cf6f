-- expire_leases: deliveries whose worker is gone go back to the agent's line, or die when that was their last attempt: one
-- that takes its worker down must not do so for ever. Their last attempt stays unfinished: what it did is unknown. The
-- fence (claim_no) makes a late write of the old worker change nothing.
--
-- $1 at most this many   $2 attempts a delivery has
UPDATE herald.deliveries
   SET status      = CASE WHEN attempts >= $2 THEN 'dead' ELSE 'queued' END,
       reason      = CASE WHEN attempts >= $2 THEN 'outcome_unknown' END,
       error       = 'the worker of attempt ' || attempts || ' ended before it could record what happened',
       finished_at = CASE WHEN attempts >= $2 THEN now() END,
       handed_at   = NULL, lease_until = NULL, updated_at = now()
 WHERE id IN (SELECT id FROM herald.deliveries WHERE status = 'running' AND lease_until < now()
               ORDER BY lease_until LIMIT $1 FOR UPDATE SKIP LOCKED)
