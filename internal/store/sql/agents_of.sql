-- agents_of: which agents some deliveries are for. That never changes, so it may be asked before these are locked.
--
-- $1 ids uuid[]
SELECT id, chain_id, identity_registry, agent_id::text FROM herald.deliveries WHERE id = ANY($1)
