-- accept: take jobs into the table, in this order, and hand out what their agents have room for.
--
-- Arrays of one length, one element a job:
-- $1  ids uuid[]          $2  keys text[]          $3  kinds text[]        $4  chain ids bigint[]   $5 identity registries text[]
-- $6  agent ids text[]    $7  order keys text[]    $8  order seqs text[]   $9  jobs jsonb[]         $10 sealed headers bytea[]
-- $11 errors text[]: a sentence for what is refused (rejected, invalid_job), null for what is queued
-- $12 how many an agent may have handed out (8)
--
-- The agents are locked. What an agent has no place for stays in its line, all of it when something stands there already.
-- Whether something does is not asked with EXISTS: Postgres may answer that for all agents at once, from a hash of every line there
-- is. Jobs and headers are taken from their arrays at the end, or they would be sorted with the rest.
-- Returns those that were new, each with its n: 1 handed out, 0 in line; a key that is known makes no row.
WITH arrival AS (
    SELECT w.*, row_number() OVER (PARTITION BY c, r, a, error IS NULL ORDER BY nr) AS turn
      FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[]::numeric[], $7::text[], $8::text[]::numeric[],
                  $11::text[])
           WITH ORDINALITY AS w(id, key, kind, c, r, a, order_key, order_seq, error, nr)
), turned AS (
    SELECT *, error IS NULL AND turn <= max(
           CASE WHEN turn > 1 OR error IS NOT NULL THEN 0
                WHEN (SELECT true FROM herald.deliveries
                       WHERE chain_id = c AND identity_registry = r AND agent_id = a AND place = 'line' LIMIT 1) THEN 0
                ELSE $12::int - (SELECT count(*) FROM herald.deliveries
                                  WHERE chain_id = c AND identity_registry = r AND agent_id = a AND place = 'out') END)
           OVER (PARTITION BY c, r, a, error IS NULL) AS out
      FROM arrival
)
INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, job, secret_headers,
                               status, reason, error, finished_at, dispatch, handed_at)
SELECT id, key, kind, c, r, a, order_key, order_seq, ($9::jsonb[])[nr::int], ($10::bytea[])[nr::int],
       CASE WHEN error IS NULL THEN 'queued' ELSE 'rejected' END, CASE WHEN error IS NOT NULL THEN 'invalid_job' END, error,
       CASE WHEN error IS NOT NULL THEN now() END, out::int, CASE WHEN out THEN now() END
  FROM turned
 ORDER BY nr
ON CONFLICT (key) DO NOTHING
RETURNING id, dispatch
