-- lost_leases: deliveries whose worker is gone.
--
-- $1 at most this many
SELECT id, chain_id, identity_registry, agent_id::text
  FROM herald.deliveries
 WHERE status = 'running' AND lease_until < now()
 ORDER BY lease_until
 LIMIT $1
