-- agents_of_orphans: the agents whose deliveries orphans.sql will end. The caller locks them first.
--
-- $1 chain   $2 follower
SELECT DISTINCT d.chain_id, d.identity_registry, d.agent_id::text
  FROM herald.chain_events e
  JOIN herald.deliveries d ON d.id = e.delivery_id
 WHERE e.chain_id = $1 AND e.follower = $2 AND e.state = 'orphaned'
