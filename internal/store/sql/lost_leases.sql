-- lost_leases: list the running deliveries of a part of the agents whose lease has expired.
--
-- The statement reads all dispatched and running deliveries of the part (lease_part.sql). An index on lease_until would
-- cost each claim more than this scan costs.
--
-- $1 at most this many
-- $2 $3 $4, $5 $6 $7: chain, identity registry and id of the agent before the part, and of its last agent
SELECT id, chain_id, identity_registry, agent_id::text
  FROM herald.work
 WHERE place = 'out' AND status = 'running' AND lease_until < now()
   AND (chain_id, identity_registry, agent_id) > ($2, $3, $4::text::numeric)
   AND (chain_id, identity_registry, agent_id) <= ($5, $6, $7::text::numeric)
 ORDER BY lease_until
 LIMIT $1
