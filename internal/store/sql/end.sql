-- end: end open deliveries for a reason that no attempt found. The transaction has locked the agents.
--
-- @ids uuid[]   @status, @reason: cancelled (operator, reorg) or dead (expired)
-- @running  true: running ones too; their new claim_no makes the writes of their workers change nothing
--
-- The statement dispatches nothing; the reconciler dispatches the agents' next deliveries. Returns one row per existing
-- delivery: whether it was ended, its status and reason before, whether it has a job, and its dispatch counter.
WITH changed AS (
    UPDATE herald.work
       SET status          = @status,
           reason          = @reason,
           error           = CASE WHEN @reason <> 'reorg' THEN error END,
           claim_no        = CASE WHEN status = 'running' THEN nextval('herald.claim_no') ELSE claim_no END,
           handed_at       = NULL,
           lease_until     = NULL,
           next_attempt_at = NULL,
           finished_at     = now(),
           updated_at      = now()
     WHERE id = ANY(@ids) AND (status IN ('queued', 'waiting', 'held') OR (@running AND status = 'running'))
    RETURNING id, status, kind, key, chain_id, identity_registry, agent_id, order_key, order_hash, order_seq, finished_at, turn,
              attempts, claimed_at
), {{lost changed}}, {{release changed}}, {{count_ended changed}}
SELECT h.id, EXISTS (SELECT FROM changed c WHERE c.id = h.id), coalesce(w.status, h.status),
       coalesce(CASE WHEN w.id IS NULL THEN h.reason ELSE w.reason END, ''), h.job IS NOT NULL, coalesce(w.dispatch, h.dispatch)
  FROM herald.history h
  LEFT JOIN LATERAL (SELECT id, status, reason, dispatch FROM herald.work WHERE id = h.id LIMIT 1) w ON true
 WHERE h.id = ANY(@ids)
