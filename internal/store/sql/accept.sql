-- accept: take jobs into the table, in this order, and dispatch what their agents have room for.
--
-- Arrays of one length, one element a job:
-- @ids uuid[], @keys text[], @kinds text[], @chain_ids bigint[], @registries text[] (IdentityRegistry),
-- @agent_ids text[], @order_keys text[], @order_seqs text[], @jobs jsonb[], @sealed_headers bytea[]
-- @errors text[]: a sentence for what is refused (rejected, invalid_job), null for what is queued
-- @bulks boolean[]: a backfill's, for all of them or for none
-- @traceparents text[]: what came with the jobs, null for none
-- @max_dispatched: how many an agent may have dispatched (8); half of them may be a backfill's
-- @strict: deliveries of one client keep their order (order_wait)
--
-- The agents are locked. What an agent may not have dispatched yet stays in its line, all of it when something stands there
-- already, before it; so does what comes while the line is held (agents.line_held_until). Whether something does is not asked with EXISTS: Postgres may answer that for all agents at once, from a
-- hash of every line there is. Jobs, headers and traceparents are taken from their arrays at the end, or they would
-- be sorted with the rest.
-- What follows another one of its client, known or new, waits behind it (behind_earlier) and stands in no line; of several
-- new ones the first is asked about, and those whose keys are known are none.
-- Returns those that were new, each with its n: 1 dispatched, 0 in line, and whether it waits; a key that is known makes no row.
WITH arrival AS MATERIALIZED (
    SELECT w.*, @strict::boolean AND error IS NULL AND count(*) OVER (PARTITION BY c, r, a, order_key) > 1 AS has_mates
      FROM unnest(@ids::uuid[], @keys::text[], @kinds::text[], @chain_ids::bigint[], @registries::text[],
                  @agent_ids::text[]::numeric[], @order_keys::text[], @order_seqs::text[]::numeric[], @errors::text[],
                  @bulks::boolean[])
           WITH ORDINALITY AS w(id, key, kind, c, r, a, order_key, order_seq, error, bulk, nr)
), mate AS MATERIALIZED ( -- of several of one client, whether another new one goes first, and whether one is its feedback
    SELECT nr, row_number() OVER (PARTITION BY c, r, a, order_key ORDER BY order_seq, kind <> 'NewFeedback', nr) > 1 AS follows,
           herald.follows_feedback(kind, key)
           AND bool_or(kind = 'NewFeedback') OVER (PARTITION BY c, r, a, order_key, order_seq) AS awaits_feedback
      FROM arrival
     WHERE has_mates AND NOT EXISTS (SELECT FROM herald.deliveries d WHERE d.key = arrival.key)
), judged AS MATERIALIZED (
    SELECT x.*, coalesce(m.awaits_feedback, false) AS awaits_mate,
           CASE WHEN NOT @strict::boolean OR error IS NOT NULL THEN NULL
                WHEN m.follows AND NOT herald.ignores_order(c, r, a) THEN now() + interval '10 years'
                ELSE herald.order_wait(id, c, r, a, kind, key, order_key, order_seq) END AS look
      FROM arrival x
      LEFT JOIN mate m USING (nr)
), arranged AS (
    SELECT *, error IS NULL AND look IS NULL AS ready,
           row_number() OVER (PARTITION BY c, r, a, error IS NULL AND look IS NULL ORDER BY nr) AS turn
      FROM judged
), turned AS (
    SELECT *, ready AND turn <= max(
           CASE WHEN turn > 1 OR NOT ready THEN 0
                WHEN (SELECT line_held_until > now() FROM herald.agents
                       WHERE chain_id = c AND identity_registry = r AND agent_id = a) THEN 0
                WHEN (SELECT true FROM herald.deliveries
                       WHERE chain_id = c AND identity_registry = r AND agent_id = a AND place = 'line'
                         AND deliveries.bulk <= arranged.bulk LIMIT 1) THEN 0
                ELSE @max_dispatched::int / CASE WHEN bulk THEN 2 ELSE 1 END
                     - (SELECT count(handed_at) FROM herald.deliveries
                         WHERE chain_id = c AND identity_registry = r AND agent_id = a AND place = 'out') END)
           OVER (PARTITION BY c, r, a, ready) AS out
      FROM arranged
)
INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, job, secret_headers,
                               status, reason, error, finished_at, dispatch, handed_at, bulk, traceparent,
                               next_attempt_at, holds_until, awaits_feedback)
SELECT id, key, kind, c, r, a, order_key, order_seq, (@jobs::jsonb[])[nr::int], (@sealed_headers::bytea[])[nr::int],
       CASE WHEN error IS NOT NULL THEN 'rejected' WHEN ready THEN 'queued' ELSE 'waiting' END,
       CASE WHEN error IS NOT NULL THEN 'invalid_job' WHEN NOT ready THEN 'behind_earlier' END,
       CASE WHEN ready OR error IS NOT NULL THEN error ELSE 'an earlier delivery of this client has not ended: it goes first' END,
       CASE WHEN error IS NOT NULL THEN now() END, out::int, CASE WHEN out THEN now() END, bulk,
       (@traceparents::text[])[nr::int], look, CASE WHEN @strict::boolean AND error IS NULL AND herald.has_order(kind) THEN timestamptz 'infinity' END,
       NOT ready AND error IS NULL AND (awaits_mate OR herald.awaits_feedback(kind, key, order_key, order_seq))
  FROM turned
 ORDER BY nr
ON CONFLICT (key) DO NOTHING
RETURNING id, dispatch, status = 'waiting'
