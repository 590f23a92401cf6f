-- release: put deliveries that were held because a setting was missing into their agents' backlogs. The setting is an
-- RPC URL for the delivery's chain, or an Arweave gateway.
--
-- $1 chain ids bigint[] that have an RPC URL now   $2 true: an Arweave gateway is set now   $3 at most this many
--
-- Returns the tasks with which the deliveries were held.
UPDATE herald.work SET status = 'queued', reason = NULL, handed_at = NULL, updated_at = now(),
       delays_until = CASE WHEN NOT called THEN {{delays_until work}} END -- as if it had just been accepted
 WHERE id = ANY(ARRAY(SELECT id FROM herald.work
                       WHERE (place || '') = 'held' AND reason IN ('chain_unconfigured', 'gateway_unconfigured') -- uses the index work_held
                         AND (reason = 'chain_unconfigured' AND chain_id = ANY($1) OR reason = 'gateway_unconfigured' AND $2)
                       ORDER BY seq + 0 LIMIT $3 FOR UPDATE SKIP LOCKED)) -- with plain seq, Postgres might choose work_seq
RETURNING id, dispatch
