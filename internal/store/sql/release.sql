-- release: deliveries that were held because their chain had no RPC URL join their agents' lines.
--
-- $1 chain ids bigint[] that have one now   $2 at most this many
UPDATE herald.deliveries SET status = 'queued', reason = NULL, handed_at = NULL, updated_at = now()
 WHERE id IN (SELECT id FROM herald.deliveries
               WHERE place = 'held' AND reason = 'chain_unconfigured' AND chain_id = ANY($1)
               ORDER BY seq LIMIT $2 FOR UPDATE SKIP LOCKED)
