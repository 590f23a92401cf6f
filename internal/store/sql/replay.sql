-- replay: queue deliveries anew because an operator asks for it. The agents are locked.
--
-- $1 ids uuid[]   $2 true: delivered ones too
--
-- What is final or held gets a fresh budget and a fresh age; the attempts' numbers go on. A wait is over; its budget
-- stays. What is queued or running is left, and what has no job: it could not be called. Returns each delivery that
-- is there, whether it was moved, what it was before, whether it has a job and its task until
-- then.
WITH changed AS (
    UPDATE herald.deliveries
       SET status          = 'queued',
           reason          = NULL,
           error           = NULL,
           budget_base     = CASE WHEN status = 'waiting' THEN budget_base ELSE attempts END,
           fetch_failures  = CASE WHEN status = 'waiting' THEN fetch_failures ELSE 0 END,
           replays         = replays + CASE WHEN status = 'waiting' THEN 0 ELSE 1 END,
           accepted_at     = CASE WHEN status = 'waiting' THEN accepted_at ELSE now() END,
           handed_at       = NULL,
           next_attempt_at = NULL,
           finished_at     = NULL,
           updated_at      = now()
     WHERE id = ANY($1)
       AND job IS NOT NULL
       AND (status IN ('waiting', 'held', 'skipped', 'rejected', 'dead', 'cancelled') OR ($2 AND status = 'delivered'))
    RETURNING id
)
SELECT d.id, EXISTS (SELECT FROM changed c WHERE c.id = d.id), d.status, coalesce(d.reason, ''), d.job IS NOT NULL, d.dispatch
  FROM herald.deliveries d
 WHERE d.id = ANY($1)
