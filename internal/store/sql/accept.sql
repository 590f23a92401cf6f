-- accept: insert jobs as deliveries, in the order of the arrays. Dispatch those that need not wait, while their agents
-- have fewer than eight dispatched deliveries.
--
-- Arrays of the same length, one element per job; each key once:
-- @ids uuid[], @keys text[], @kinds text[], @chain_ids bigint[], @registries text[] (IdentityRegistry),
-- @agent_ids text[], @order_keys text[], @order_seqs text[], @jobs jsonb[], @sealed_headers bytea[]
-- @errors text[]: why a job is refused (rejected, invalid_job); null: the job is valid
-- @filters text[]: the filter of the default policy that skips the job (skipped, filtered); null: none. If the agent's own row
--   has filters, they decide with the default ones, at the check, and the job is queued.
-- @bulks boolean[]: true: the job is part of a backfill; all elements are equal
-- @traceparents text[]: the traceparent that came with the job, or null
-- @sources text[], @trusts smallint[]: the sender of the job
-- @bound: the jobs were read from the chain
-- @max_dispatched: how many deliveries of an agent may be dispatched (8); a backfill may use half of them
-- @max_responses: how many of them may be responses (2)
-- @order: strict or off, for agents whose policy does not say it: are deliveries of one ordering key called in order?
--
-- The transaction has locked the agents. A job stays in its agent's backlog (place = 'line') if the agent already has a
-- backlog, which is dispatched first, or if @max_dispatched of the agent's deliveries are dispatched. Two details serve
-- the plan. The look-up of the backlog is no EXISTS, which Postgres could answer for all agents at once from a hash of
-- every backlog row. Jobs, headers and traceparents are read from their arrays last, so that Postgres does not sort
-- them with the other columns.
--
-- A job that may not be called yet (parts/turn.sql) becomes waiting (behind_earlier), outside the backlog. So does a
-- response if @max_responses responses to its agent are already dispatched. If several new jobs of one ordering key
-- need no check of their event, only the first of them can get the turn.
--
-- A job whose key already exists (known) inserts nothing, and uses no slot that a new job needs. Among jobs of one
-- agent, a look-up finds out which are known.
--
-- Returns one row per inserted delivery: id, dispatch counter (1: dispatched, 0: in the backlog or waiting), whether it
-- waits, and whether it was filtered. A known job returns no row. The counter is -1 for a job that was accepted at the
-- same time by a transaction with the lock of another agent: other jobs may wait for it, so the caller must roll back.
WITH arrival AS MATERIALIZED (
    SELECT w.*, coalesce(refusal, filter) AS error, refusal IS NULL AND filter IS NOT NULL AS filtered,
           coalesce(refusal, filter) IS NULL AND count(*) OVER (PARTITION BY chain_id, identity_registry, agent_text, order_key) > 1 AS has_mates,
           count(*) OVER (PARTITION BY chain_id, identity_registry, agent_text) > 1 AS has_peers,
           @bound::boolean AS bound, EXISTS (SELECT FROM herald.verified_chains v WHERE v.chain_id = w.chain_id) AS verified
      FROM (SELECT w.*, w.agent_text::numeric AS agent_id, CASE WHEN skip IS NOT NULL AND NOT EXISTS (
                   SELECT FROM herald.agents g WHERE g.chain_id = w.chain_id AND g.identity_registry = w.identity_registry
                      AND g.agent_id = w.agent_text::numeric AND g.policy ? 'filters') THEN skip END AS filter
              FROM unnest(@ids::uuid[], @keys::text[], @kinds::text[], @chain_ids::bigint[], @registries::text[],
                          @agent_ids::text[], @order_keys::text[], @order_seqs::text[]::numeric[], @errors::text[], @filters::text[],
                          @bulks::boolean[])
                   WITH ORDINALITY AS w(id, key, kind, chain_id, identity_registry, agent_text, order_key, order_seq, refusal, skip, bulk, nr)) w
), hashed AS MATERIALIZED (
    SELECT w.*, CASE WHEN (error IS NULL OR filtered) AND (kind = 'ResponseAppended' OR coalesce((
                          SELECT g.policy ->> 'order' FROM herald.agents g WHERE g.chain_id = w.chain_id
                             AND g.identity_registry = w.identity_registry AND g.agent_id = w.agent_id), @order::text) <> 'off')
                     THEN {{order_hash w}} END AS order_hash,
           has_peers AND (SELECT true FROM herald.history d WHERE herald.key_hash(d.key) = herald.key_hash(w.key)) IS NOT NULL AS known
      FROM arrival w
), mate AS MATERIALIZED ( -- follows: a new job of its ordering key goes first; awaits_feedback: its feedback is new too
    SELECT nr, order_hash IS NOT NULL AND kind <> 'ResponseAppended' AND row_number() OVER (PARTITION BY order_hash ORDER BY order_seq, kind DESC, nr) > 1
                AND (bound OR NOT verified OR kind = 'FeedbackRevoked') AS follows,
           order_hash IS NOT NULL AND (kind = 'ResponseAppended' OR key LIKE '%#FeedbackRevoked%')
           AND bool_or(kind = 'NewFeedback') OVER (PARTITION BY chain_id, identity_registry, agent_id, order_key, order_seq) AS awaits_feedback
      FROM hashed
     WHERE has_mates AND NOT known
), decided AS MATERIALIZED (
    SELECT x.*, CASE WHEN filtered THEN NULL WHEN m.awaits_feedback OR m.follows AND (bound OR NOT verified) THEN now() + interval '10 years'
                     WHEN m.follows THEN now() + interval '10 s' -- an unchecked delivery delays others for 10 s only
                     ELSE {{turn x}} END AS recheck_at
      FROM (SELECT *, 9223372036854775807 AS seq, now() AS accepted_at FROM hashed) x -- after all others
      LEFT JOIN mate m USING (nr)
), arranged AS MATERIALIZED (
    SELECT d.*, error IS NULL AND recheck_at IS NULL AND NOT d.excess AS ready
      FROM (SELECT d.*, kind = 'ResponseAppended' AND error IS NULL AND recheck_at IS NULL
                   AND row_number() OVER (PARTITION BY chain_id, identity_registry, agent_id, kind, known, error IS NULL, recheck_at IS NULL ORDER BY nr)
                     > @max_responses::int - (SELECT count(*) FILTER (WHERE o.kind = 'ResponseAppended') FROM herald.work o
                         WHERE o.chain_id = d.chain_id AND o.identity_registry = d.identity_registry AND o.agent_id = d.agent_id
                           AND o.place = 'out') AS excess
              FROM decided d) d
), turned AS MATERIALIZED (
    SELECT *, ready AND NOT known AND turn_nr <= max(
           CASE WHEN turn_nr > 1 OR NOT ready THEN 0
                WHEN (SELECT true FROM herald.work o
                       WHERE o.chain_id = a.chain_id AND o.identity_registry = a.identity_registry AND o.agent_id = a.agent_id AND o.place = 'line'
                         AND o.bulk <= a.bulk LIMIT 1) THEN 0
                ELSE @max_dispatched::int / CASE WHEN bulk THEN 2 ELSE 1 END
                     - (SELECT count(handed_at) FROM herald.work o
                         WHERE o.chain_id = a.chain_id AND o.identity_registry = a.identity_registry AND o.agent_id = a.agent_id AND o.place = 'out') END)
           OVER (PARTITION BY chain_id, identity_registry, agent_id, ready, known) AS out
      FROM (SELECT *, row_number() OVER (PARTITION BY chain_id, identity_registry, agent_id, ready, known ORDER BY nr) AS turn_nr FROM arranged) a
), made AS (
    INSERT INTO herald.history (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, order_hash, bulk, job, secret_headers, traceparent,
                                source, trust, bound, verified, status, reason, error, finished_at)
    SELECT id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, order_hash, bulk, (@jobs::jsonb[])[nr::int],
           (@sealed_headers::bytea[])[nr::int], (@traceparents::text[])[nr::int], (@sources::text[])[nr::int], (@trusts::smallint[])[nr::int], bound, verified,
           CASE WHEN filtered THEN 'skipped' WHEN error IS NOT NULL THEN 'rejected' ELSE 'queued' END,
           CASE WHEN filtered THEN 'filtered' WHEN error IS NOT NULL THEN 'invalid_job' END, error,
           CASE WHEN error IS NOT NULL THEN now() END
      FROM turned
     ORDER BY nr
    ON CONFLICT (herald.key_hash(key)) DO NOTHING
    RETURNING id, seq
), opened AS MATERIALIZED (
    SELECT t.*, made.seq AS new_seq FROM turned t JOIN made USING (id)
), work AS (
    INSERT INTO herald.work (id, seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, bulk, bound, verified,
                             status, reason, error, dispatch, handed_at, next_attempt_at, order_hash, turn, delays_until)
    SELECT id, new_seq, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, bulk, bound, verified,
           CASE WHEN ready THEN 'queued' ELSE 'waiting' END, CASE WHEN NOT ready THEN 'behind_earlier' END,
           CASE WHEN ready THEN NULL
                WHEN kind = 'ResponseAppended' THEN 'its feedback, or other responses to this agent, go first'
                ELSE 'an earlier delivery of this client has not ended: it goes first' END,
           out::int, CASE WHEN out THEN now() END, CASE WHEN excess THEN now() + interval '10 years' ELSE recheck_at END,
           CASE WHEN excess THEN {{responses_hash opened}} ELSE order_hash END,
           out AND (bound OR NOT verified) AND order_hash IS NOT NULL AND kind <> 'ResponseAppended', {{delays_until opened}}
      FROM opened
     WHERE error IS NULL
), skipped AS (
    SELECT chain_id, identity_registry, agent_id, 'skipped' AS status, now() AS finished_at FROM opened WHERE filtered
), {{count_ended skipped}}
SELECT id, out::int, error IS NULL AND NOT ready, filtered FROM opened
UNION ALL
SELECT id, -1, false, false FROM turned WHERE has_mates AND NOT known AND id NOT IN (SELECT id FROM made)
