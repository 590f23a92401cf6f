-- record: write what an attempt led to, under the claim's fence: the delivery, its attempt and what is known of the agent.
-- Runs in one implicit transaction between lock_agent and dispatch. Where it says herald.attempts, the caller puts the attempt's
-- week when it knows it: through the partitioned table this statement would begin with all the weeks there are.
--
-- $1  delivery id          $2  claim_no             $3  attempt started_at    $4  attempt number
-- $5  status               $6  reason or null       $7  delay until the next attempt (interval), for waiting
-- $8  true: the wait gets a task of its own now (n + 1, scheduled in Redis); false: it stays here until it is due
-- $9  true: free, the attempt's count and row are taken back (ignored when a call was made)
-- $10 a call was written   $11 stage reached        $12 error or null
-- $13 tool name            $14 endpoint             $15 file_verification     $16 file_source
-- $17 arguments jsonb      $18 response jsonb       $19 protocol              $20 result jsonb
-- $21 the agent answered and took it                $22 error the agent is to blame for, or null
-- $23 server info jsonb    $24 the feedback file could not be fetched
-- $25 a moved endpoint would explain the failure        $26 the agent's epoch as the claim knew it
-- $27 duration (ms), or null: until now
-- $28 fields of the file that contradict the event (text[]), or null: none; kept as they were when there is no $15
-- $29 the agent's tools jsonb when they are news, else null: they stay
--
-- A late success is the one exception to the fence: a delivery that is not final becomes delivered, with a new claim_no, and
-- the attempt is completed whatever the delivery is. The agent's epoch is raised once: not again until it has answered, or
-- until something else has raised it. Returns the row's dispatch counter, next_attempt_at, acceptance, now and whether its next
-- task is bulk (dispatch.sql), also when this very claim wrote the same status before (its answer was lost on the way); no row:
-- the claim is lost.
WITH recorded AS (
    UPDATE herald.deliveries
       SET status            = $5,
           reason            = $6,
           claim_no          = CASE WHEN claim_no = $2 AND status = 'running' THEN claim_no ELSE nextval('herald.claim_no') END,
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
           file_disagrees    = CASE WHEN $15::text IS NULL THEN file_disagrees ELSE $28 END,
           result            = coalesce($20, result),
           fetch_failures    = fetch_failures + CASE WHEN $24 THEN 1 ELSE 0 END,
           error             = $12,
           updated_at        = now(),
           finished_at       = CASE WHEN $5 IN ('delivered', 'skipped', 'rejected', 'dead', 'cancelled') THEN now() END
     WHERE id = $1
       AND ((claim_no = $2 AND status = 'running')
         OR ($5 = 'delivered' AND status IN ('queued', 'running', 'waiting', 'held')))
    RETURNING chain_id, identity_registry, agent_id, status, finished_at, dispatch, next_attempt_at, accepted_at,
              replays > 0 AND attempts <= budget_base AS bulk
), freed AS (
    DELETE FROM herald.attempts
     WHERE delivery_id = $1 AND number = $4 AND started_at = $3
       AND $9 AND NOT $10 AND EXISTS (SELECT FROM recorded)
), completed AS (
    UPDATE herald.attempts
       SET duration_ms = coalesce($27::int, least(extract(epoch FROM clock_timestamp() - started_at) * 1000, 2147483647)),
           stage       = $11,
           outcome     = $5,
           reason      = $6,
           error       = $12,
           arguments   = $17,
           response    = $18,
           protocol    = $19
     WHERE delivery_id = $1 AND number = $4 AND started_at = $3
       AND outcome IS NULL AND NOT ($9 AND NOT $10) AND ($5 = 'delivered' OR EXISTS (SELECT FROM recorded))
), agent AS (
    UPDATE herald.agents g
       SET totals        = CASE WHEN r.finished_at IS NULL THEN totals
                                ELSE totals || jsonb_build_object(r.status, coalesce((totals ->> r.status)::bigint, 0) + 1) END,
           state         = CASE WHEN NOT enabled OR $6 = 'agent_disabled' THEN 'disabled' -- the servers file disables agents too
                                WHEN $21 THEN 'connected'
                                WHEN $6 = 'auth_required' THEN 'needs_auth'
                                WHEN $22::text IS NOT NULL THEN 'failed'
                                WHEN state = 'disabled' THEN 'pending'
                                ELSE state END,
           epoch         = CASE WHEN $25 AND epoch = $26 AND raised_epoch IS DISTINCT FROM epoch THEN epoch + 1 ELSE epoch END,
           raised_epoch  = CASE WHEN $21 THEN NULL WHEN $25 AND epoch = $26 AND raised_epoch IS DISTINCT FROM epoch THEN epoch + 1 ELSE raised_epoch END,
           last_ok_at    = CASE WHEN $21 THEN now() ELSE last_ok_at END,
           last_error    = coalesce($22, last_error),
           last_error_at = CASE WHEN $22::text IS NOT NULL THEN now() ELSE last_error_at END,
           endpoint      = coalesce($14, endpoint),
           protocol      = coalesce($19, protocol),
           server_info   = coalesce($23, server_info),
           tools         = coalesce($29, tools),
           updated_at    = now()
      FROM recorded r
     WHERE g.chain_id = r.chain_id AND g.identity_registry = r.identity_registry AND g.agent_id = r.agent_id
)
SELECT dispatch, next_attempt_at, accepted_at, now(), bulk FROM recorded
UNION ALL
SELECT dispatch, next_attempt_at, accepted_at, now(), replays > 0 AND attempts <= budget_base
  FROM herald.deliveries
 WHERE id = $1 AND claim_no = $2 AND status = $5 AND status NOT IN ('queued', 'running') AND NOT EXISTS (SELECT FROM recorded)
