-- lost_leases: list the running deliveries whose lease has expired.
--
-- The statement reads all dispatched and running deliveries. An index on lease_until would cost each claim more than
-- this scan costs.
--
-- $1 at most this many
SELECT id, chain_id, identity_registry, agent_id::text
  FROM herald.work
 WHERE place = 'out' AND status = 'running' AND lease_until < now()
 ORDER BY lease_until
 LIMIT $1
