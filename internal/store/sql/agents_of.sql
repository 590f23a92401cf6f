-- agents_of: the agents of some deliveries.
--
-- The caller reads them without locks, and locks the agents afterwards. Only succeed.sql changes the agent of a
-- delivery.
--
-- $1 ids uuid[]
SELECT id, chain_id, identity_registry, agent_id::text FROM herald.deliveries WHERE id = ANY($1)
