-- replay: queue deliveries again at an operator's request. The transaction has locked the agents.
--
-- @ids uuid[]   @delivered, @filtered, @cancelled   true: deliveries that ended in this way too
--
-- A final or held delivery gets a new budget and a new age; the numbers of its attempts continue. It waits for no other
-- delivery from now on. A waiting delivery stops waiting, and keeps its budget and its order. Queued and running
-- deliveries do not change, nor do deliveries without a job, which could not be called.
--
-- Returns one row per existing delivery: whether it was replayed, its status and reason before, whether it has a job,
-- and its dispatch counter.
WITH changed AS (
    UPDATE herald.work w
       SET status          = 'queued',
           reason          = NULL,
           error           = NULL,
           budget_base     = CASE WHEN status = 'waiting' THEN budget_base ELSE attempts END,
           order_hash      = CASE WHEN status = 'waiting' THEN order_hash END, -- a replay waits for no other delivery
           delays_until    = CASE WHEN status = 'waiting' THEN delays_until END,
           fetch_failures  = CASE WHEN status = 'waiting' THEN fetch_failures ELSE 0 END,
           replays         = replays + CASE WHEN status = 'waiting' THEN 0 ELSE 1 END,
           accepted_at     = CASE WHEN status = 'waiting' THEN accepted_at ELSE now() END,
           handed_at       = NULL,
           next_attempt_at = NULL,
           updated_at      = now()
     WHERE id = ANY(@ids) AND status IN ('waiting', 'held') AND (SELECT job IS NOT NULL FROM herald.history h WHERE h.id = w.id)
    RETURNING id
), ended AS (
    UPDATE herald.history
       SET status = 'queued', reason = NULL, error = NULL, budget_base = attempts, order_hash = NULL, fetch_failures = 0, replays = replays + 1,
           accepted_at = now(), finished_at = NULL, updated_at = now()
     WHERE id = ANY(@ids) AND job IS NOT NULL AND finished_at IS NOT NULL AND (status <> 'delivered' OR @delivered)
       AND (reason IS DISTINCT FROM 'filtered' OR @filtered) AND (status <> 'cancelled' OR @cancelled)
    RETURNING *
), opened AS (
    {{reopen ended}}
)
SELECT h.id, EXISTS (SELECT FROM changed c WHERE c.id = h.id) OR EXISTS (SELECT FROM ended c WHERE c.id = h.id), coalesce(w.status, h.status),
       coalesce(CASE WHEN w.id IS NULL THEN h.reason ELSE w.reason END, ''), h.job IS NOT NULL, coalesce(w.dispatch, h.dispatch)
  FROM herald.history h
  LEFT JOIN LATERAL (SELECT id, status, reason, dispatch FROM herald.work WHERE id = h.id LIMIT 1) w ON true
 WHERE h.id = ANY(@ids)
