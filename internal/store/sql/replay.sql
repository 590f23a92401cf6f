-- replay: queue deliveries again at an operator's request. The transaction has locked the agents.
--
-- $1 ids uuid[]   $2 true: delivered ones too
--
-- A final or held delivery gets a new budget and a new age; the numbers of attempts continue. A waiting delivery stops
-- waiting and keeps its budget. Queued and running deliveries do not change. Deliveries without a job do not change
-- either: they could not be called.
--
-- Returns one row per delivery that exists: whether it was replayed, its status and reason before, whether it has a
-- job, and its dispatch counter.
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
