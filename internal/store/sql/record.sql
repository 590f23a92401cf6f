-- record: write what an attempt led to, under the claim's fence. Runs in one implicit transaction with totals and dispatch.
--
-- $1  delivery id          $2  claim_no             $3  attempt started_at    $4  attempt number
-- $5  status               $6  reason or null       $7  delay until the next attempt (interval), for waiting
-- $8  true: the wait gets a task of its own now (n + 1, scheduled in Redis); false: it stays here until it is due
-- $9  true: free, the attempt's count and row are taken back (ignored when a call was made)
-- $10 a call was written   $11 stage reached        $12 error or null
-- $13 tool name            $14 endpoint             $15 file_verification     $16 file_source
-- $17 arguments jsonb      $18 response jsonb       $19 protocol              $20 result jsonb
--
-- Returns the row's new dispatch counter, next_attempt_at and lane data; no row when the claim is no longer ours.
WITH recorded AS (
    UPDATE herald.deliveries
       SET status            = $5,
           reason            = $6,
           attempts          = attempts - CASE WHEN $9 AND NOT $10 THEN 1 ELSE 0 END,
           dispatch          = dispatch + CASE WHEN $5 = 'waiting' AND $8 THEN 1 ELSE 0 END,
           handed_at         = CASE WHEN $5 = 'waiting' AND $8 THEN now() END,
           called            = called OR $10,
           lease_until       = NULL,
           next_attempt_at   = CASE WHEN $5 = 'waiting' THEN now() + $7::interval END,
           tool_name         = coalesce($13, tool_name),
           endpoint          = coalesce($14, endpoint),
           file_verification = coalesce($15, file_verification),
           file_source       = coalesce($16, file_source),
           result            = coalesce($20, result),
           error             = $12,
           updated_at        = now(),
           finished_at       = CASE WHEN $5 IN ('delivered', 'skipped', 'rejected', 'dead', 'cancelled') THEN now() END
     WHERE id = $1 AND claim_no = $2 AND status = 'running'
    RETURNING id, dispatch, next_attempt_at, created_at
), freed AS (
    DELETE FROM herald.attempts a USING recorded r
     WHERE a.delivery_id = r.id AND a.number = $4 AND a.started_at = $3 AND $9 AND NOT $10
), completed AS (
    UPDATE herald.attempts a
       SET duration_ms = extract(epoch FROM clock_timestamp() - a.started_at) * 1000,
           stage       = $11,
           outcome     = $5,
           reason      = $6,
           error       = $12,
           arguments   = $17,
           response    = $18,
           protocol    = $19
      FROM recorded r
     WHERE a.delivery_id = r.id AND a.number = $4 AND a.started_at = $3 AND NOT ($9 AND NOT $10)
)
SELECT dispatch, next_attempt_at, created_at, now() FROM recorded
