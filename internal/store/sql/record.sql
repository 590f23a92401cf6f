-- record: store the outcomes of attempts in the deliveries, the attempts and the agents' rows. Each change requires
-- that the claim is still valid: claim_no is unchanged (the fence).
--
-- A delivery that ends moves from work to history. The statement runs in one implicit transaction after lock_agents (or
-- lock_agent and lock_delivery), and before dispatch.
--
-- @alone: this is one attempt, and its row is locked. Without @alone, a missing row in the answer may also mean that
-- another transaction has locked the delivery.
--
-- Arrays of the same length, one element per attempt, sorted by delivery id. The outcomes of one agent are applied in
-- this order.
-- @ids uuid[], @claim_nos bigint[], @started_ats timestamptz[], @numbers int[] (of the attempts)
-- @statuses text[], @reasons text[], @delays interval[] until the next attempt, for waiting
-- @tasks         the delivery waits with a task in Redis, which asynq runs again; false: it waits in Postgres only
-- @anews         with @tasks, the wait gets a new task (n + 1), because the present task has not ended
-- @frees         the attempt is not stored and does not count; ignored if a call was sent
-- @called        a call was sent
-- @stages        last stage of the attempt, @errors or null
-- @tool_names, @endpoints, @file_verifications, @file_sources
-- @file_disagrees  jsonb[], each an array of the fields of the file that contradict the event, or null: none; unchanged
--                if the file verification is null
-- @arguments, @responses, @results (jsonb[]), @protocols
-- @step_us       text[], each an integer[]: µs for check, resolve, fetch, connect, compose and call, up to the last one
-- @agent_oks     the agent accepted the call
-- @agent_errors  an error that the agent caused, or null
-- @server_infos, @tools, @registrations (jsonb[]); null: unchanged
-- @fetch_failed  the feedback file could not be fetched
-- @endpoints_of_jobs  the job named the endpoint: the agent's row does not change
-- @moved         the call may have failed because the agent moved; @epochs: the agent's epoch in the claim
-- @durations     ms of the attempt, or null: it ends now
-- @latencies     the bucket of agents.hour_latency (1 to 14) for the duration of the call, or null
-- @rechecks      the event was not found, or not yet, or is back, or the delivery has no turn; @hints: Claim.Hints
-- @reroutes      bind.sql gave the delivery another agent, or no turn
--
-- A lost claim changes nothing, with one exception: a success that arrives late. It ends an unfinished delivery as
-- delivered, under a new claim_no, which takes away the claim of a running attempt. In every status of the delivery,
-- complete.sql then completes the attempt of the success.
--
-- A delivery with @rechecks is queued again at once if a hint arrived after the claim, or with @reroutes. The hint may
-- name the right position of the event, so a new budget of attempts begins.
--
-- Returns for each attempt its number in the arrays (from 1), and of its delivery: dispatch counter, next_attempt_at,
-- accepted_at, now(), whether its next task is bulk (dispatch.sql), and whether it was queued again. If this claim
-- already wrote the same status, but the answer was lost, it returns the same row. It returns no row for a lost claim,
-- and without @alone also none for a delivery that another transaction has locked.
--
-- A feedback delays later deliveries of its ordering key (delays_until) in three cases: while it waits for
-- confirmations or earlier feedback; until 60 s after its first claim after that; and, if its event was not read yet
-- (not_confirmed), until 30 s after acceptance. The delay ends early when the feedback is held or has ended. After
-- every outcome, parts/release.sql puts the deliveries that may be called next into the agent's backlog.
--
-- Counters: an outcome is counted once, in the hour in which it is recorded. A call is an attempt that sent a call, or
-- that failed because of the agent; only the latter counts as failed, under its reason. failing_since is the time of
-- the first failed call after a success. The agent's row has the counts of its last hour with a call. When a later hour
-- begins, the trigger keep_agent_hour copies them to agent_hours. A transaction that began in an earlier hour but writes
-- later is counted in the hour that the row has by then. A row with an hour after the next one is of a clock that was
-- ahead: its counts are dropped, because it would get the counts of all calls until then.
--
-- The agent's epoch is raised once for @moved. It is not raised again before a success, or before another cause has
-- raised it.
--
-- A wait that began before the agent was resolved shows nothing about the agent, so it does not change the agent's row,
-- nor does a delivery that is queued again at once. The chain follower may have given such a delivery to another agent,
-- whose row the transaction has not locked.
--
-- Plan: every row is found by its key in a LATERAL subquery that Postgres cannot pull up (FOR NO KEY UPDATE, OFFSET 0),
-- and is updated by its ctid, which allows only a direct read of that row. With joins, Postgres could read whole tables
-- while the statistics are old.
WITH locked AS MATERIALIZED (
    SELECT w.*, ordinal::int AS nr, d.found, d.claim_valid, d.claim_valid AND w.free AND NOT w.called AS undone,
           CASE WHEN NOT d.claim_valid THEN d.claimed_at END AS claimed_at,
           d.claim_valid AND (@rechecks::boolean[])[ordinal]
           AND ((@reroutes::boolean[])[ordinal] OR (@hints::int[])[ordinal] <> (SELECT hints FROM herald.history h WHERE h.id = w.id))
           AND (w.status = 'rejected' AND w.reason = 'event_not_found' OR w.status = 'skipped' AND w.reason = 'mined_again'
                OR w.status = 'waiting' AND w.reason IN ('not_confirmed', 'chain_unavailable', 'behind_earlier')) AS again
      FROM unnest(@ids::uuid[], @claim_nos::bigint[], @started_ats::timestamptz[], @numbers::int[], @statuses::text[],
                  @reasons::text[], @errors::text[], @endpoints::text[], @protocols::text[], @agent_oks::boolean[],
                  @agent_errors::text[], @latencies::integer[], @frees::boolean[], @called::boolean[])
           WITH ORDINALITY AS w(id, claim_no, started_at, number, status, reason, error, endpoint, protocol, agent_ok,
                                agent_error, latency, free, called, ordinal)
     CROSS JOIN LATERAL (SELECT ctid AS found, claimed_at, claim_no IS NOT DISTINCT FROM w.claim_no AND status = 'running' AS claim_valid
                           FROM herald.work
                          WHERE id = w.id AND (claim_no = w.claim_no AND status = 'running'
                             OR @alone::boolean AND w.status = 'delivered' AND status IN ('queued', 'running', 'waiting', 'held'))
                            FOR NO KEY UPDATE SKIP LOCKED) d
), paused AS (
    UPDATE herald.work d
       SET status            = CASE WHEN l.again THEN 'queued' ELSE l.status END,
           reason            = CASE WHEN NOT l.again THEN l.reason END,
           attempts          = attempts - l.undone::int,
           budget_base       = CASE WHEN l.again AND l.reason <> 'behind_earlier' THEN attempts - l.undone::int ELSE budget_base END,
           dispatch          = dispatch + (l.status = 'waiting' AND (@tasks::boolean[])[nr] AND (@anews::boolean[])[nr])::int,
           handed_at         = CASE WHEN l.status = 'waiting' AND (@tasks::boolean[])[nr] AND NOT l.again THEN now() END,
           called            = d.called OR l.called,
           claimed_at        = NULL,
           lease_until       = NULL,
           next_attempt_at   = CASE WHEN l.status = 'waiting' AND NOT l.again THEN now() + (@delays::interval[])[nr] END,
           fetch_failures    = fetch_failures + (@fetch_failed::boolean[])[nr]::int,
           delays_until      = CASE WHEN l.again AND l.reason <> 'behind_earlier' THEN {{delays_until d}}
                                    WHEN l.status = 'held' THEN NULL
                                    WHEN delays_until IS NOT NULL AND l.reason = 'not_confirmed' AND verified AND NOT bound THEN accepted_at + interval '30 s'
                                    WHEN delays_until = 'infinity' AND (NOT l.undone OR (@stages::text[])[nr] NOT IN ('claim', 'check'))
                                    THEN l.started_at + interval '60 s' ELSE delays_until END,
           error             = CASE WHEN NOT l.again THEN l.error END,
           updated_at        = now()
      FROM locked l
     WHERE d.ctid = l.found AND (l.again OR l.status IN ('waiting', 'held'))
    RETURNING l.*, NULL::timestamptz AS finished_at, chain_id, identity_registry, agent_id, dispatch, next_attempt_at, accepted_at, attempts, budget_base,
              fetch_failures, replays, bulk, kind, key, order_key, order_hash, order_seq, turn, d.called AS was_called, d.claim_no AS last_claim
), ended AS (
    DELETE FROM herald.work d
     USING locked l
     WHERE d.ctid = l.found AND NOT (l.again OR l.status IN ('waiting', 'held'))
    RETURNING l.*, now() AS finished_at, chain_id, identity_registry, agent_id, dispatch, NULL::timestamptz AS next_attempt_at, accepted_at,
              attempts - l.undone::int AS attempts, budget_base, fetch_failures + (@fetch_failed::boolean[])[nr]::int AS fetch_failures, replays, bulk, kind, key,
              order_key, order_hash, order_seq, turn, d.called OR l.called AS was_called,
              CASE WHEN l.claim_valid THEN d.claim_no ELSE nextval('herald.claim_no') END AS last_claim
), recorded AS MATERIALIZED (
    SELECT * FROM paused UNION ALL SELECT * FROM ended
), written AS ( -- deliveries that ended, and results that a later attempt may not get again
    UPDATE herald.history h
       SET tool_name         = coalesce((@tool_names::text[])[nr], tool_name),
           endpoint          = coalesce(r.endpoint, h.endpoint),
           file_verification = coalesce((@file_verifications::text[])[nr], file_verification),
           file_source       = coalesce((@file_sources::text[])[nr], file_source),
           file_disagrees    = CASE WHEN (@file_verifications::text[])[nr] IS NULL THEN file_disagrees
                                    ELSE (SELECT array_agg(f) FROM jsonb_array_elements_text((@file_disagrees::jsonb[])[nr]) f) END,
           result            = coalesce((@results::jsonb[])[nr], result),
           status            = CASE WHEN r.finished_at IS NULL THEN h.status ELSE r.status END,
           reason            = CASE WHEN r.finished_at IS NOT NULL THEN r.reason END,
           error             = CASE WHEN r.finished_at IS NOT NULL THEN r.error END,
           attempts = r.attempts, budget_base = r.budget_base, fetch_failures = r.fetch_failures, dispatch = r.dispatch, replays = r.replays,
           called = r.was_called, claim_no = r.last_claim, order_hash = r.order_hash, accepted_at = r.accepted_at,
           updated_at = now(), finished_at = r.finished_at
      FROM recorded r
     WHERE h.id = r.id AND h.id = ANY(ARRAY(SELECT id FROM recorded
           WHERE finished_at IS NOT NULL OR coalesce((@tool_names::text[])[nr], endpoint, (@file_verifications::text[])[nr]) IS NOT NULL
              OR (@results::jsonb[])[nr] IS NOT NULL))
), {{release recorded}}, tried AS ( -- and running attempts that a late success takes away, as in parts/lost.sql
    INSERT INTO herald.attempts (delivery_id, number, started_at, stage, outcome, reason, error, protocol, arguments, response, step_us, duration_ms)
    SELECT id, number, started_at, (@stages::text[])[nr], status, reason, error, protocol, (@arguments::jsonb[])[nr], (@responses::jsonb[])[nr],
           (@step_us::text[])[nr]::integer[],
           coalesce((@durations::int[])[nr], least(extract(epoch FROM clock_timestamp() - started_at) * 1000, 2147483647))
      FROM recorded
     WHERE claim_valid AND NOT undone
     UNION ALL
    SELECT id, attempts, claimed_at, 'claim', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM recorded WHERE claimed_at IS NOT NULL
), agent AS (
    UPDATE herald.agents g
       SET totals        = totals || coalesce(
                           (SELECT jsonb_object_agg(s, coalesce((totals ->> s)::bigint, 0) + n)
                              FROM (SELECT s, count(*) AS n FROM unnest(ended) e(s) GROUP BY s) x), '{}'),
           state         = CASE WHEN NOT enabled OR (@reasons::text[])[judged] = 'agent_disabled' THEN 'disabled' -- by the row or the servers file
                                WHEN (@agent_oks::boolean[])[judged] THEN 'connected'
                                WHEN (@reasons::text[])[judged] = 'auth_required' THEN 'needs_auth'
                                WHEN judged IS NOT NULL THEN 'failed'
                                WHEN state = 'disabled' THEN 'pending'
                                ELSE state END,
           epoch         = epoch + (moved_from IS NOT DISTINCT FROM epoch AND raised_epoch IS DISTINCT FROM epoch)::int,
           raised_epoch  = CASE WHEN any_ok THEN NULL
                                WHEN moved_from = epoch AND raised_epoch IS DISTINCT FROM epoch THEN epoch + 1 ELSE raised_epoch END,
           failing_since = CASE WHEN rated IS NULL THEN failing_since
                                WHEN (@agent_oks::boolean[])[rated] THEN NULL
                                WHEN any_ok THEN now()
                                ELSE least(failing_since, now()) END, -- a clock may have been ahead
           last_called_at = CASE WHEN calls > 0 THEN now() ELSE last_called_at END,
           hour          = CASE WHEN calls = 0 OR hour BETWEEN this_hour AND next_hour THEN hour ELSE this_hour END,
           hour_calls    = calls + CASE WHEN calls = 0 OR hour BETWEEN this_hour AND next_hour THEN hour_calls ELSE 0 END,
           hour_failed   = coalesce(cardinality(blamed), 0) + CASE WHEN calls = 0 OR hour BETWEEN this_hour AND next_hour THEN hour_failed ELSE 0 END,
           hour_failures = CASE WHEN calls = 0 OR hour BETWEEN this_hour AND next_hour THEN hour_failures ELSE '{}' END || CASE WHEN blamed IS NULL THEN '{}' ELSE
                           (SELECT jsonb_object_agg(why, n + CASE WHEN hour BETWEEN this_hour AND next_hour THEN coalesce((hour_failures ->> why)::integer, 0) ELSE 0 END)
                              FROM (SELECT why, count(*) AS n FROM unnest(blamed) b(why) GROUP BY why) x) END,
           hour_latency  = CASE WHEN calls = 0 THEN hour_latency WHEN hour BETWEEN this_hour AND next_hour THEN
                           ARRAY[hour_latency[1] + r.took[1], hour_latency[2] + r.took[2], hour_latency[3] + r.took[3], hour_latency[4] + r.took[4],
                                hour_latency[5] + r.took[5], hour_latency[6] + r.took[6], hour_latency[7] + r.took[7], hour_latency[8] + r.took[8],
                                hour_latency[9] + r.took[9], hour_latency[10] + r.took[10], hour_latency[11] + r.took[11], hour_latency[12] + r.took[12],
                                hour_latency[13] + r.took[13], hour_latency[14] + r.took[14]]
                                ELSE took END,
           last_ok_at    = CASE WHEN any_ok THEN now() ELSE last_ok_at END,
           last_error    = coalesce((@agent_errors::text[])[failed], last_error),
           last_error_at = CASE WHEN failed IS NOT NULL THEN now() ELSE last_error_at END,
           endpoint      = coalesce((@endpoints::text[])[called], endpoint),
           protocol      = coalesce((@protocols::text[])[spoken], protocol),
           server_info   = coalesce((@server_infos::jsonb[])[introduced], server_info),
           tools         = coalesce((@tools::jsonb[])[listed], tools),
           registration  = coalesce((@registrations::jsonb[])[resolved], registration),
           updated_at    = now()
      FROM (SELECT chain_id, identity_registry, agent_id, -- max(nr): the last element that has a value
                   array_agg(status) FILTER (WHERE finished_at IS NOT NULL) AS ended,
                   bool_or(agent_ok) AS any_ok,
                   max(nr) FILTER (WHERE agent_ok OR agent_error IS NOT NULL) AS rated,
                   max(nr) FILTER (WHERE agent_ok OR agent_error IS NOT NULL OR reason IN ('auth_required', 'agent_disabled')) AS judged,
                   max((@epochs::bigint[])[nr]) FILTER (WHERE (@moved::boolean[])[nr]) AS moved_from,
                   max(nr) FILTER (WHERE agent_error IS NOT NULL) AS failed,
                   max(nr) FILTER (WHERE endpoint IS NOT NULL) AS called,
                   max(nr) FILTER (WHERE protocol IS NOT NULL) AS spoken,
                   max(nr) FILTER (WHERE (@server_infos::jsonb[])[nr] IS NOT NULL) AS introduced,
                   max(nr) FILTER (WHERE (@tools::jsonb[])[nr] IS NOT NULL) AS listed,
                   max(nr) FILTER (WHERE (@registrations::jsonb[])[nr] IS NOT NULL) AS resolved,
                   count(*) FILTER (WHERE called OR agent_error IS NOT NULL) AS calls,
                   array_agg(coalesce(reason, status)) FILTER (WHERE agent_error IS NOT NULL) AS blamed,
                   ARRAY[count(*) FILTER (WHERE latency = 1), count(*) FILTER (WHERE latency = 2),
                         count(*) FILTER (WHERE latency = 3), count(*) FILTER (WHERE latency = 4),
                         count(*) FILTER (WHERE latency = 5), count(*) FILTER (WHERE latency = 6),
                         count(*) FILTER (WHERE latency = 7), count(*) FILTER (WHERE latency = 8),
                         count(*) FILTER (WHERE latency = 9), count(*) FILTER (WHERE latency = 10),
                         count(*) FILTER (WHERE latency = 11), count(*) FILTER (WHERE latency = 12),
                         count(*) FILTER (WHERE latency = 13), count(*) FILTER (WHERE latency = 14)] AS took,
                   date_trunc('hour', now(), 'UTC') AS this_hour, date_trunc('hour', now() + interval '1 hour', 'UTC') AS next_hour
              FROM recorded
             WHERE NOT (@endpoints_of_jobs::boolean[])[nr] AND NOT again
               AND (status <> 'waiting' OR called OR agent_error IS NOT NULL OR (@stages::text[])[nr] NOT IN ('claim', 'check'))
             GROUP BY 1, 2, 3) r
     CROSS JOIN LATERAL (SELECT ctid AS found FROM herald.agents
                          WHERE chain_id = r.chain_id AND identity_registry = r.identity_registry
                            AND agent_id = r.agent_id OFFSET 0) o
     WHERE g.ctid = o.found
)
SELECT nr, dispatch, next_attempt_at, accepted_at, now(), bulk OR replays > 0 AND attempts <= budget_base, again FROM recorded
UNION ALL
SELECT ordinal::int, dispatch, next_attempt_at, accepted_at, now(), bulk OR replays > 0 AND attempts <= budget_base, false
  FROM unnest(@ids::uuid[], @claim_nos::bigint[], @statuses::text[]) WITH ORDINALITY AS w(id, claim_no, status, ordinal)
 CROSS JOIN LATERAL (SELECT dispatch, next_attempt_at, accepted_at, bulk, replays, attempts, budget_base
                       FROM herald.work d
                      WHERE d.id = w.id AND d.claim_no = w.claim_no AND d.status = w.status AND d.status IN ('waiting', 'held')
                      UNION ALL
                     SELECT dispatch, NULL, accepted_at, bulk, replays, attempts, budget_base
                       FROM herald.history d
                      WHERE d.id = w.id AND d.claim_no = w.claim_no AND d.status = w.status AND d.finished_at IS NOT NULL OFFSET 0) d
 WHERE ordinal NOT IN (SELECT nr FROM locked)
