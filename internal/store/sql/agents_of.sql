-- agents_of: read the agents of some deliveries.
--
-- The statement locks nothing. The caller then locks the agents, and runs the statement again with a clause that locks
-- the rows. The agent of a delivery hardly ever changes: only bind.sql and read_event.sql change it.
--
-- $1 ids uuid[]
SELECT id, chain_id, identity_registry, agent_id::text FROM herald.history WHERE id = ANY($1)
