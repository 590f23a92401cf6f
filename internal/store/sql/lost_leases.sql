-- lost_leases: deliveries whose worker is gone. Walks through all that are dispatched, 8 an agent at most: an index
-- on their leases would cost every claim more than this.
--
-- $1 at most this many
SELECT id, chain_id, identity_registry, agent_id::text
  FROM herald.deliveries
 WHERE place = 'out' AND status = 'running' AND lease_until < now()
 ORDER BY lease_until
 LIMIT $1
