-- release: deliveries that were held because a setting was missing join their agents' lines: an RPC URL for their
-- chain, or a gateway.
--
-- $1 chain ids bigint[] that have an RPC URL now   $2 true: there is an Arweave gateway now   $3 at most this many
--
-- Returns the tasks that they were held with.
UPDATE herald.deliveries SET status = 'queued', reason = NULL, handed_at = NULL, updated_at = now(),
       holds_until = CASE WHEN NOT called AND holds_until IS NOT NULL THEN 'infinity' ELSE holds_until END -- as if it came now
 WHERE id IN (SELECT id FROM herald.deliveries
               WHERE place = 'held' AND (reason = 'chain_unconfigured' AND chain_id = ANY($1) OR reason = 'gateway_unconfigured' AND $2)
               ORDER BY seq LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING id, dispatch
