-- accept: take jobs into the table, in this order, and dispatch what their agents have room for.
--
-- Arrays of one length, one element a job:
-- @ids uuid[], @keys text[], @kinds text[], @chain_ids bigint[], @registries text[] (IdentityRegistry),
-- @agent_ids text[], @order_keys text[], @order_seqs text[], @jobs jsonb[], @sealed_headers bytea[]
-- @errors text[]: a sentence for what is refused (rejected, invalid_job), null for what is queued
-- @bulks boolean[]: a backfill's, for all of them or for none
-- @traceparents text[]: what came with the jobs, null for none
-- @max_dispatched: how many an agent may have dispatched (8); half of them may be a backfill's
--
-- The agents are locked. What an agent may not have dispatched yet stays in its line, all of it when something stands there
-- already, before it. Whether something does is not asked with EXISTS: Postgres may answer that for all agents at once, from a
-- hash of every line there is. Jobs, headers and traceparents are taken from their arrays at the end, or they would
-- be sorted with the rest.
-- Returns those that were new, each with its n: 1 dispatched, 0 in line; a key that is known makes no row.
WITH arrival AS (
    SELECT w.*, row_number() OVER (PARTITION BY c, r, a, error IS NULL ORDER BY nr) AS turn
      FROM unnest(@ids::uuid[], @keys::text[], @kinds::text[], @chain_ids::bigint[], @registries::text[],
                  @agent_ids::text[]::numeric[], @order_keys::text[], @order_seqs::text[]::numeric[], @errors::text[],
                  @bulks::boolean[])
           WITH ORDINALITY AS w(id, key, kind, c, r, a, order_key, order_seq, error, bulk, nr)
), turned AS (
    SELECT *, error IS NULL AND turn <= max(
           CASE WHEN turn > 1 OR error IS NOT NULL THEN 0
                WHEN (SELECT true FROM herald.deliveries
                       WHERE chain_id = c AND identity_registry = r AND agent_id = a AND place = 'line'
                         AND deliveries.bulk <= arrival.bulk LIMIT 1) THEN 0
                ELSE @max_dispatched::int / CASE WHEN bulk THEN 2 ELSE 1 END
                     - (SELECT count(*) FROM herald.deliveries
                         WHERE chain_id = c AND identity_registry = r AND agent_id = a AND place = 'out') END)
           OVER (PARTITION BY c, r, a, error IS NULL) AS out
      FROM arrival
)
INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, job, secret_headers,
                               status, reason, error, finished_at, dispatch, handed_at, bulk, traceparent)
SELECT id, key, kind, c, r, a, order_key, order_seq, (@jobs::jsonb[])[nr::int], (@sealed_headers::bytea[])[nr::int],
       CASE WHEN error IS NULL THEN 'queued' ELSE 'rejected' END, CASE WHEN error IS NOT NULL THEN 'invalid_job' END, error,
       CASE WHEN error IS NOT NULL THEN now() END, out::int, CASE WHEN out THEN now() END, bulk,
       (@traceparents::text[])[nr::int]
  FROM turned
 ORDER BY nr
ON CONFLICT (key) DO NOTHING
RETURNING id, dispatch
