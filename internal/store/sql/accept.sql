-- accept: insert jobs as deliveries, in the order of the arrays, and dispatch as many as their agents may have.
--
-- Arrays of the same length, one element per job:
-- @ids uuid[], @keys text[], @kinds text[], @chain_ids bigint[], @registries text[] (IdentityRegistry),
-- @agent_ids text[], @order_keys text[], @order_seqs text[], @jobs jsonb[], @sealed_headers bytea[]
-- @errors text[]: why a job is refused (rejected, invalid_job); null: the job is queued
-- @bulks boolean[]: true: the job is part of a backfill; all elements are equal
-- @traceparents text[]: the traceparent that came with the job, or null
-- @sources text[], @trusts smallint[]: the sender of the job
-- @bound: the jobs were read from the chain
-- @max_dispatched: how many deliveries of an agent may be dispatched (8); a backfill may use half of them
-- @strict: deliveries of one ordering key are sent in order (order_wait)
--
-- The transaction has locked the agents. A job stays in its agent's backlog (place = 'line') when the agent already has
-- a backlog that goes first, when agents.line_held_until has not passed, or when the agent has @max_dispatched
-- deliveries dispatched. The statement does not ask for a backlog with EXISTS: Postgres could answer EXISTS for all
-- agents at once, from a hash of every backlog row. Jobs, headers and traceparents are read from their arrays last, so
-- that Postgres does not sort them with the other columns.
--
-- A job that must wait for another delivery of its ordering key, stored or new, becomes waiting (behind_earlier) and is
-- not in the backlog. Of several new jobs of one ordering key, only the first is tested with order_wait. Jobs whose
-- keys exist are not new.
--
-- Returns one row per inserted delivery: id, dispatch counter (1: dispatched, 0: in the backlog or waiting), and
-- whether it waits. A job whose key exists returns no row.
WITH arrival AS MATERIALIZED (
    SELECT w.*, @strict::boolean AND error IS NULL AND count(*) OVER (PARTITION BY c, r, a, order_key) > 1 AS has_mates
      FROM unnest(@ids::uuid[], @keys::text[], @kinds::text[], @chain_ids::bigint[], @registries::text[],
                  @agent_ids::text[]::numeric[], @order_keys::text[], @order_seqs::text[]::numeric[], @errors::text[],
                  @bulks::boolean[])
           WITH ORDINALITY AS w(id, key, kind, c, r, a, order_key, order_seq, error, bulk, nr)
), mate AS MATERIALIZED ( -- for several new jobs of one ordering key: does another one go first, and is its feedback among them?
    SELECT nr, row_number() OVER (PARTITION BY c, r, a, order_key ORDER BY order_seq, kind <> 'NewFeedback', nr) > 1 AS follows,
           herald.follows_feedback(kind, key)
           AND bool_or(kind = 'NewFeedback') OVER (PARTITION BY c, r, a, order_key, order_seq) AS awaits_feedback
      FROM arrival
     WHERE has_mates AND NOT EXISTS (SELECT FROM herald.deliveries d WHERE d.key = arrival.key)
), decided AS MATERIALIZED (
    SELECT x.*, coalesce(m.awaits_feedback, false) AS awaits_mate,
           CASE WHEN NOT @strict::boolean OR error IS NOT NULL THEN NULL
                WHEN m.follows AND NOT herald.ignores_order(c, r, a) THEN now() + interval '10 years'
                ELSE herald.order_wait(id, c, r, a, kind, key, order_key, order_seq) END AS recheck_at
      FROM arrival x
      LEFT JOIN mate m USING (nr)
), arranged AS (
    SELECT *, error IS NULL AND recheck_at IS NULL AS ready,
           row_number() OVER (PARTITION BY c, r, a, error IS NULL AND recheck_at IS NULL ORDER BY nr) AS turn
      FROM decided
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
                               next_attempt_at, holds_until, awaits_feedback, source, trust, bound, verified)
SELECT id, key, kind, c, r, a, order_key, order_seq, (@jobs::jsonb[])[nr::int], (@sealed_headers::bytea[])[nr::int],
       CASE WHEN error IS NOT NULL THEN 'rejected' WHEN ready THEN 'queued' ELSE 'waiting' END,
       CASE WHEN error IS NOT NULL THEN 'invalid_job' WHEN NOT ready THEN 'behind_earlier' END,
       CASE WHEN ready OR error IS NOT NULL THEN error ELSE 'an earlier delivery of this client has not ended: it goes first' END,
       CASE WHEN error IS NOT NULL THEN now() END, out::int, CASE WHEN out THEN now() END, bulk,
       (@traceparents::text[])[nr::int], recheck_at, CASE WHEN @strict::boolean AND error IS NULL AND herald.has_order(kind) THEN timestamptz 'infinity' END,
       NOT ready AND error IS NULL AND (awaits_mate OR herald.awaits_feedback(kind, key, order_key, order_seq)),
       (@sources::text[])[nr::int], (@trusts::smallint[])[nr::int], @bound::boolean,
       EXISTS (SELECT FROM herald.verified_chains WHERE chain_id = c)
  FROM turned
 ORDER BY nr
ON CONFLICT (key) DO NOTHING
RETURNING id, dispatch, status = 'waiting'
