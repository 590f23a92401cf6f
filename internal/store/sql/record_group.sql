-- record_group: record the outcomes of a group of plain attempts, as record.sql would record them one after the other.
--
-- The order is that of the arrays. Runs in one implicit transaction between lock_agents and dispatch_group. The caller
-- replaces herald.attempts by the partition of all the attempts.
--
-- Arrays of the same length, one element per attempt, in the order of the deliveries' ids. If two elements have the
-- same claim, one of them is recorded:
-- @ids uuid[], @claim_nos bigint[], @started_ats timestamptz[], @numbers int[]
-- @statuses text[] (final or waiting), @reasons text[], @delays interval[], @tasks boolean[], @called boolean[],
-- @endpoints_of_jobs boolean[]
-- @stages text[], @errors text[], @tool_names text[], @endpoints text[], @protocols text[]
-- @step_us text[], each an integer[] as text
-- @file_verifications text[], @file_sources text[]
-- @arguments jsonb[], @responses jsonb[], @results jsonb[]
-- @agent_oks boolean[], @agent_errors text[], @server_infos jsonb[], @tools jsonb[], @preferences jsonb[]
-- @latencies int[]: the bucket of agents.hour_latency (1 to 14) of the call's duration, or null
--
-- record.sql explains the arguments. This statement handles only valid claims, and no outcome that is a late success,
-- holds the backlog, is free, needs a new task, is held, concerns the agent's credentials or its being disabled, has a
-- file that disagrees or could not be fetched, or raises the epoch. A claim that is lost, or whose row another
-- transaction has locked, returns no row and changes nothing.
--
-- Every row is found by its key in a LATERAL subquery that Postgres cannot pull up (FOR NO KEY UPDATE, OFFSET 0), and
-- updated by its ctid, which allows only a direct read of that row. Joined by their keys, the tables could be read from
-- end to end whenever the statistics are old. Returns the element's number (1-based), and the delivery's dispatch
-- counter, next_attempt_at, accepted_at, now(), and whether its next task is bulk.
WITH locked AS MATERIALIZED (
    SELECT w.*, ordinal::int AS nr, d.ctid AS found
      FROM unnest(@ids::uuid[], @claim_nos::bigint[], @started_ats::timestamptz[], @numbers::int[], @statuses::text[],
                  @reasons::text[], @errors::text[], @endpoints::text[], @protocols::text[], @agent_oks::boolean[],
                  @agent_errors::text[], @latencies::integer[])
           WITH ORDINALITY AS w(id, claim_no, started_at, number, status, reason, error, endpoint, protocol, agent_ok,
                                agent_error, latency, ordinal)
     CROSS JOIN LATERAL (SELECT ctid FROM herald.deliveries
                          WHERE id = w.id AND claim_no = w.claim_no AND status = 'running'
                            FOR NO KEY UPDATE SKIP LOCKED) d
), recorded AS (
    UPDATE herald.deliveries d
       SET status            = l.status,
           reason            = l.reason,
           handed_at         = CASE WHEN l.status = 'waiting' AND (@tasks::boolean[])[nr] THEN now() END,
           called            = called OR (@called::boolean[])[nr],
           lease_until       = NULL,
           next_attempt_at   = CASE WHEN l.status = 'waiting' THEN now() + (@delays::interval[])[nr] END,
           tool_name         = coalesce((@tool_names::text[])[nr], tool_name),
           endpoint          = coalesce(l.endpoint, d.endpoint),
           file_verification = coalesce((@file_verifications::text[])[nr], file_verification),
           file_source       = coalesce((@file_sources::text[])[nr], file_source),
           file_disagrees    = CASE WHEN (@file_verifications::text[])[nr] IS NULL THEN file_disagrees END,
           result            = coalesce((@results::jsonb[])[nr], result),
           holds_until       = CASE WHEN holds_until = 'infinity' THEN l.started_at + interval '60 s' ELSE holds_until END,
           error             = l.error,
           updated_at        = now(),
           finished_at       = CASE WHEN l.status <> 'waiting' THEN now() END
      FROM locked l
     WHERE d.ctid = l.found
    RETURNING l.*, chain_id, identity_registry, agent_id, dispatch, next_attempt_at, accepted_at,
              bulk OR replays > 0 AND attempts <= budget_base AS bulk, order_key, order_seq, finished_at
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
), completed AS (
    UPDATE herald.attempts
        AS a
       SET duration_ms = least(extract(epoch FROM clock_timestamp() - a.started_at) * 1000, 2147483647),
           stage       = (@stages::text[])[nr],
           outcome     = r.status,
           reason      = r.reason,
           error       = r.error,
           arguments   = (@arguments::jsonb[])[nr],
           response    = (@responses::jsonb[])[nr],
           protocol    = r.protocol,
           step_us     = (@step_us::text[])[nr]::integer[]
      FROM recorded r
     CROSS JOIN LATERAL (SELECT ctid AS found FROM herald.attempts
                          WHERE delivery_id = r.id AND number = r.number AND started_at = r.started_at
                            AND outcome IS NULL OFFSET 0) o
     WHERE a.ctid = o.found
), agent AS (
    UPDATE herald.agents g
       SET totals        = totals || coalesce(
                           (SELECT jsonb_object_agg(s, coalesce((totals ->> s)::bigint, 0) + n)
                              FROM (SELECT s, count(*) AS n FROM unnest(ended) e(s) GROUP BY s) x), '{}'),
           state         = CASE WHEN NOT enabled THEN 'disabled'
                                WHEN (@agent_oks::boolean[])[rated] THEN 'connected'
                                WHEN rated IS NOT NULL THEN 'failed'
                                WHEN state = 'disabled' THEN 'pending'
                                ELSE state END,
           failing_since = CASE WHEN rated IS NULL THEN failing_since
                                WHEN (@agent_oks::boolean[])[rated] THEN NULL
                                WHEN any_ok THEN now()
                                ELSE coalesce(failing_since, now()) END,
           last_called_at = CASE WHEN calls > 0 THEN now() ELSE last_called_at END,
           hour          = CASE WHEN calls > 0 THEN greatest(hour, this_hour) ELSE hour END,
           hour_calls    = calls + CASE WHEN calls = 0 OR hour >= this_hour THEN hour_calls ELSE 0 END,
           hour_failed   = coalesce(cardinality(blamed), 0) + CASE WHEN calls = 0 OR hour >= this_hour THEN hour_failed ELSE 0 END,
           hour_failures = CASE WHEN calls = 0 OR hour >= this_hour THEN hour_failures ELSE '{}' END || CASE WHEN blamed IS NULL THEN '{}' ELSE
                           (SELECT jsonb_object_agg(why, n + CASE WHEN hour >= this_hour THEN coalesce((hour_failures ->> why)::integer, 0) ELSE 0 END)
                              FROM (SELECT why, count(*) AS n FROM unnest(blamed) b(why) GROUP BY why) x) END,
           hour_latency  = CASE WHEN calls = 0 THEN hour_latency WHEN hour >= this_hour THEN
                           ARRAY[hour_latency[1] + r.took[1], hour_latency[2] + r.took[2], hour_latency[3] + r.took[3], hour_latency[4] + r.took[4],
                                hour_latency[5] + r.took[5], hour_latency[6] + r.took[6], hour_latency[7] + r.took[7], hour_latency[8] + r.took[8],
                                hour_latency[9] + r.took[9], hour_latency[10] + r.took[10], hour_latency[11] + r.took[11], hour_latency[12] + r.took[12],
                                hour_latency[13] + r.took[13], hour_latency[14] + r.took[14]]
                                ELSE took END,
           raised_epoch  = CASE WHEN NOT any_ok THEN raised_epoch END,
           last_ok_at    = CASE WHEN any_ok THEN now() ELSE last_ok_at END,
           last_error    = coalesce((@agent_errors::text[])[failed], last_error),
           last_error_at = CASE WHEN failed IS NOT NULL THEN now() ELSE last_error_at END,
           endpoint      = coalesce((@endpoints::text[])[called], endpoint),
           protocol      = coalesce((@protocols::text[])[spoken], protocol),
           server_info   = coalesce((@server_infos::jsonb[])[introduced], server_info),
           tools         = coalesce((@tools::jsonb[])[listed], tools),
           preferences   = CASE WHEN (@preferences::jsonb[])[preferring] ->> 'saidAt' >= coalesce(preferences ->> 'saidAt', '')
                                THEN (@preferences::jsonb[])[preferring] ELSE preferences END,
           updated_at    = now()
      FROM (SELECT chain_id, identity_registry, agent_id, -- max(nr): the last element that has a value
                   array_agg(status) FILTER (WHERE status <> 'waiting') AS ended,
                   bool_or(agent_ok) AS any_ok,
                   max(nr) FILTER (WHERE agent_ok OR agent_error IS NOT NULL) AS rated,
                   max(nr) FILTER (WHERE agent_error IS NOT NULL) AS failed,
                   max(nr) FILTER (WHERE endpoint IS NOT NULL) AS called,
                   max(nr) FILTER (WHERE protocol IS NOT NULL) AS spoken,
                   max(nr) FILTER (WHERE (@server_infos::jsonb[])[nr] IS NOT NULL) AS introduced,
                   max(nr) FILTER (WHERE (@tools::jsonb[])[nr] IS NOT NULL) AS listed,
                   max(nr) FILTER (WHERE (@preferences::jsonb[])[nr] IS NOT NULL) AS preferring,
                   count(*) FILTER (WHERE (@called::boolean[])[nr] OR agent_error IS NOT NULL) AS calls,
                   array_agg(coalesce(reason, status)) FILTER (WHERE agent_error IS NOT NULL) AS blamed,
                   ARRAY[count(*) FILTER (WHERE latency = 1), count(*) FILTER (WHERE latency = 2),
                         count(*) FILTER (WHERE latency = 3), count(*) FILTER (WHERE latency = 4),
                         count(*) FILTER (WHERE latency = 5), count(*) FILTER (WHERE latency = 6),
                         count(*) FILTER (WHERE latency = 7), count(*) FILTER (WHERE latency = 8),
                         count(*) FILTER (WHERE latency = 9), count(*) FILTER (WHERE latency = 10),
                         count(*) FILTER (WHERE latency = 11), count(*) FILTER (WHERE latency = 12),
                         count(*) FILTER (WHERE latency = 13), count(*) FILTER (WHERE latency = 14)] AS took,
                   date_trunc('hour', now(), 'UTC') AS this_hour
              FROM recorded WHERE NOT (@endpoints_of_jobs::boolean[])[nr] GROUP BY 1, 2, 3) r
     CROSS JOIN LATERAL (SELECT ctid AS found FROM herald.agents
                          WHERE chain_id = r.chain_id AND identity_registry = r.identity_registry
                            AND agent_id = r.agent_id OFFSET 0) o
     WHERE g.ctid = o.found
)
SELECT nr, dispatch, next_attempt_at, accepted_at, now(), bulk FROM recorded
