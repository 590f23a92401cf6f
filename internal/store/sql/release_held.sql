-- release_auth: deliveries of an agent that were held for want of a credential, or for another reason that was mended, join its line, the
-- oldest first. The agent is locked.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 at most this many
-- $5 the agent's epoch as a claim knew it: only if it was raised since, as storing a credential does; -1: in any case
-- $6 the reasons text[]
UPDATE herald.deliveries SET status = 'queued', reason = NULL, handed_at = NULL, updated_at = now()
 WHERE id IN (SELECT d.id FROM herald.deliveries d
               WHERE d.chain_id = $1 AND d.identity_registry = $2 AND d.agent_id = $3
                 AND d.place = 'held' AND d.reason = ANY($6::text[])
                 AND (SELECT epoch FROM herald.agents WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3) > $5::bigint
               ORDER BY d.seq LIMIT $4)
