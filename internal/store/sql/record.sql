-- record: record the outcome of an attempt under the claim's fence: the delivery, its attempt and the agent's row.
--
-- Runs in one implicit transaction between lock_agent and dispatch. The caller replaces herald.attempts by the
-- attempt's partition when it knows the partition: an update of the partitioned table would visit every partition.
--
-- @delivery_id, @claim_no, @started_at, @number (of the attempt)
-- @status, @reason or null, @delay until the next attempt (interval), for waiting
-- @task          true: it waits with a task in Redis (asynq retries n); false: it waits in Postgres only
-- @anew          true: with @task, the wait gets a new task (n + 1), because the present task has not ended
-- @free          true: the attempt's row and count are undone (ignored when a call was written)
-- @called        a call was written
-- @stage         last stage of the attempt, @error or null
-- @tool_name, @endpoint, @file_verification, @file_source
-- @file_disagrees  fields of the file that contradict the event (text[]), or null: none; unchanged if
--                @file_verification is null
-- @arguments, @response, @result (jsonb), @protocol
-- @step_us       integer[], µs for check, resolve, fetch, compose and call, up to the last stage; null: unknown
-- @agent_ok      the agent accepted the call
-- @agent_error   an error that is the agent's fault, or null
-- @server_info, @tools (jsonb); null: unchanged
-- @fetch_failed  the feedback file could not be fetched
-- @endpoint_of_job  the job named the endpoint: the agent's row does not change
-- @moved         a moved endpoint would explain the failure; @epoch: the agent's epoch in the claim
-- @duration_ms   or null: until now
-- @latency       integer[14], to add to agents.hour_latency: 1 in the bucket of the call's duration, which Go chooses
--                (latencyBounds: 10 ms to 60 s); all 0 when no call was written
-- @preferences   jsonb, the preferences in the agent's answer; null: none. Newer stored ones stay
-- @hold_line     how long nothing of the agent's backlog is dispatched (interval); 0: unchanged
--
-- The fence has one exception: a late success makes a delivery that has not ended delivered, with a new claim_no, and
-- it completes its attempt in every status of the delivery. The agent's epoch is raised once: not again before a
-- success, or before another cause has raised it.
--
-- Returns the delivery's dispatch counter, next_attempt_at, accepted_at, now(), and whether its next task is bulk
-- (dispatch.sql). It returns the same row if this claim wrote the same status before (the answer was lost). No row: the
-- claim is lost.
--
-- Deliveries that wait for this one join the agent's backlog, after every outcome: the first with an index and the
-- first without one of the ordering key, and, when this delivery has ended, the deliveries that wait for it as their
-- feedback. order_wait decides when they are dispatched whether they may go. Of the first two, the older is dispatched,
-- so that neither can block the other for ever.
--
-- An outcome is counted once, in the hour in which it is recorded. A call is an attempt that wrote one, or that failed
-- by the agent's fault (@agent_error); the latter counts as failed, under its reason. failing_since is the first failed
-- call after a success. The agent's row has the counts of its last hour with a call; when a later hour begins, the
-- trigger keep_agent_hour copies them to agent_hours. The hour never decreases: if a transaction began before the hour
-- ended but writes after one that began in the next hour, its outcome is counted in the next hour. The counts need no
-- lock besides the agent's.
WITH recorded AS (
    UPDATE herald.deliveries
       SET status            = @status,
           reason            = @reason,
           claim_no          = CASE WHEN claim_no = @claim_no AND status = 'running' THEN claim_no ELSE nextval('herald.claim_no') END,
           attempts          = attempts - CASE WHEN @free AND NOT @called THEN 1 ELSE 0 END,
           dispatch          = dispatch + CASE WHEN @status = 'waiting' AND @task AND @anew THEN 1 ELSE 0 END,
           handed_at         = CASE WHEN @status = 'waiting' AND @task THEN now() END,
           called            = called OR @called,
           lease_until       = NULL,
           next_attempt_at   = CASE WHEN @status = 'waiting' THEN now() + @delay::interval END,
           tool_name         = coalesce(@tool_name, tool_name),
           endpoint          = coalesce(@endpoint, endpoint),
           file_verification = coalesce(@file_verification, file_verification),
           file_source       = coalesce(@file_source, file_source),
           file_disagrees    = CASE WHEN @file_verification::text IS NULL THEN file_disagrees ELSE @file_disagrees END,
           result            = coalesce(@result, result),
           fetch_failures    = fetch_failures + CASE WHEN @fetch_failed THEN 1 ELSE 0 END,
           holds_until       = CASE WHEN holds_until = 'infinity' AND (@called OR NOT @free AND attempts > 0 OR @status = 'held') -- attempts = 0: adopt.sql undid a free attempt
                                    THEN @started_at::timestamptz + interval '60 s'
                                    WHEN holds_until = 'infinity' AND @reason IN ('chain_unavailable', 'not_confirmed') -- the node may never answer
                                    THEN @started_at::timestamptz + interval '10 min' ELSE holds_until END,
           error             = @error,
           updated_at        = now(),
           finished_at       = CASE WHEN @status IN ('delivered', 'skipped', 'rejected', 'dead', 'cancelled') THEN now() END
     WHERE id = @delivery_id
       AND ((claim_no = @claim_no AND status = 'running')
         OR (@status = 'delivered' AND status IN ('queued', 'running', 'waiting', 'held')))
    RETURNING chain_id, identity_registry, agent_id, status, finished_at, dispatch, next_attempt_at, accepted_at,
              bulk OR replays > 0 AND attempts <= budget_base AS bulk, order_key, order_seq
), follower AS ( -- the next deliveries of the ordering key, and those that wait for this feedback
    UPDATE herald.deliveries
       SET status = 'queued', reason = NULL, error = NULL, next_attempt_at = NULL, updated_at = now()
     WHERE id = ANY(ARRAY(
           SELECT f.id
             FROM recorded r
            CROSS JOIN LATERAL (
                  (SELECT id FROM herald.deliveries
                    WHERE herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) = herald.order_hash(0, r.identity_registry, r.order_key)
                      AND order_key = r.order_key AND identity_registry = r.identity_registry
                    ORDER BY herald.follow_turn(awaits_feedback, kind, order_seq, seq) LIMIT 1)
                  UNION ALL
                  (SELECT id FROM herald.deliveries
                    WHERE herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) = herald.order_hash(1, r.identity_registry, r.order_key)
                      AND order_key = r.order_key AND identity_registry = r.identity_registry
                    ORDER BY herald.follow_turn(awaits_feedback, kind, order_seq, seq) LIMIT 1)
                  UNION ALL
                  (SELECT id FROM herald.deliveries
                    WHERE herald.behind_hash(place, reason, awaits_feedback, kind, identity_registry, order_key) = herald.order_hash(2, r.identity_registry, r.order_key)
                      AND herald.follow_turn(awaits_feedback, kind, order_seq, seq) = r.order_seq
                      AND r.finished_at IS NOT NULL AND order_key = r.order_key AND identity_registry = r.identity_registry
                    LIMIT 100)) f))
), late AS ( -- a late success of an ended delivery: orphans.sql must know that the agent was called
    UPDATE herald.deliveries SET called = true
     WHERE id = @delivery_id AND @status = 'delivered' AND @called AND NOT called AND NOT EXISTS (SELECT FROM recorded)
), freed AS (
    DELETE FROM herald.attempts
     WHERE delivery_id = @delivery_id AND number = @number AND started_at = @started_at
       AND @free AND NOT @called AND EXISTS (SELECT FROM recorded)
), completed AS (
    UPDATE herald.attempts
       SET duration_ms = coalesce(@duration_ms::int, least(extract(epoch FROM clock_timestamp() - started_at) * 1000, 2147483647)),
           stage       = @stage,
           outcome     = @status,
           reason      = @reason,
           error       = @error,
           arguments   = @arguments,
           response    = @response,
           protocol    = @protocol,
           step_us     = @step_us
     WHERE delivery_id = @delivery_id AND number = @number AND started_at = @started_at
       AND outcome IS NULL AND NOT (@free AND NOT @called) AND (@status = 'delivered' OR EXISTS (SELECT FROM recorded))
), agent AS (
    UPDATE herald.agents g
       SET totals        = CASE WHEN r.finished_at IS NULL THEN totals
                                ELSE totals || jsonb_build_object(r.status, coalesce((totals ->> r.status)::bigint, 0) + 1) END,
           state         = CASE WHEN NOT enabled OR @reason = 'agent_disabled' THEN 'disabled' -- by the row or the servers file
                                WHEN @agent_ok THEN 'connected'
                                WHEN @reason = 'auth_required' THEN 'needs_auth'
                                WHEN @agent_error::text IS NOT NULL THEN 'failed'
                                WHEN state = 'disabled' THEN 'pending'
                                ELSE state END,
           epoch         = CASE WHEN @moved AND epoch = @epoch AND raised_epoch IS DISTINCT FROM epoch THEN epoch + 1 ELSE epoch END,
           raised_epoch  = CASE WHEN @agent_ok THEN NULL WHEN @moved AND epoch = @epoch AND raised_epoch IS DISTINCT FROM epoch THEN epoch + 1 ELSE raised_epoch END,
           last_ok_at    = CASE WHEN @agent_ok THEN now() ELSE last_ok_at END,
           last_error    = coalesce(@agent_error, last_error),
           last_error_at = CASE WHEN @agent_error::text IS NOT NULL THEN now() ELSE last_error_at END,
           last_called_at = CASE WHEN calls > 0 THEN now() ELSE last_called_at END,
           failing_since = CASE WHEN @agent_ok THEN NULL WHEN failed > 0 THEN coalesce(failing_since, now()) ELSE failing_since END,
           hour          = CASE WHEN calls > 0 THEN greatest(hour, this_hour) ELSE hour END,
           hour_calls    = calls + CASE WHEN calls = 0 OR hour >= this_hour THEN hour_calls ELSE 0 END,
           hour_failed   = failed + CASE WHEN calls = 0 OR hour >= this_hour THEN hour_failed ELSE 0 END,
           hour_failures = CASE WHEN calls = 0 OR hour >= this_hour THEN hour_failures ELSE '{}' END || CASE WHEN failed = 0 THEN '{}' ELSE
                           jsonb_build_object(why, 1 + CASE WHEN hour >= this_hour THEN coalesce((hour_failures ->> why)::integer, 0) ELSE 0 END) END,
           hour_latency  = CASE WHEN calls = 0 THEN hour_latency WHEN hour >= this_hour THEN
                           ARRAY[hour_latency[1] + r.took[1], hour_latency[2] + r.took[2], hour_latency[3] + r.took[3], hour_latency[4] + r.took[4],
                                hour_latency[5] + r.took[5], hour_latency[6] + r.took[6], hour_latency[7] + r.took[7], hour_latency[8] + r.took[8],
                                hour_latency[9] + r.took[9], hour_latency[10] + r.took[10], hour_latency[11] + r.took[11], hour_latency[12] + r.took[12],
                                hour_latency[13] + r.took[13], hour_latency[14] + r.took[14]]
                                ELSE took END,
           endpoint      = coalesce(@endpoint, endpoint),
           protocol      = coalesce(@protocol, protocol),
           server_info   = coalesce(@server_info, server_info),
           tools         = coalesce(@tools, tools),
           preferences   = CASE WHEN @preferences::jsonb ->> 'saidAt' >= coalesce(preferences ->> 'saidAt', '') THEN @preferences ELSE preferences END,
           line_held_until = CASE WHEN @hold_line::interval > '0 s' THEN greatest(line_held_until, now() + @hold_line::interval)
                                ELSE line_held_until END,
           updated_at    = now()
      FROM (SELECT *, CASE WHEN @called OR @agent_error::text IS NOT NULL THEN 1 ELSE 0 END AS calls,
                   CASE WHEN @agent_error::text IS NULL THEN 0 ELSE 1 END AS failed, coalesce(@reason, @status) AS why,
                   @latency::integer[] AS took, date_trunc('hour', now(), 'UTC') AS this_hour
              FROM recorded) r
     WHERE g.chain_id = r.chain_id AND g.identity_registry = r.identity_registry AND g.agent_id = r.agent_id
       AND NOT @endpoint_of_job::boolean
)
SELECT dispatch, next_attempt_at, accepted_at, now(), bulk FROM recorded
UNION ALL
SELECT dispatch, next_attempt_at, accepted_at, now(), bulk OR replays > 0 AND attempts <= budget_base
  FROM herald.deliveries
 WHERE id = @delivery_id AND claim_no = @claim_no AND status = @status AND status NOT IN ('queued', 'running') AND NOT EXISTS (SELECT FROM recorded)
