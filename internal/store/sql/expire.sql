-- expire: list open deliveries that have reached an age, the oldest first, and lock them and their agents. end.sql then
-- ends them.
--
-- Running deliveries are skipped; they end, or their lease expires first.
--
-- $1 age (interval)   $2 at most this many   $3 all deliveries of that age have a seq below this one
--
-- The statement skips deliveries that another transaction has locked, and those whose agent is locked; the next call
-- finds them. It locks agents before their deliveries, as lock_agents.sql does. It changes nothing, because it cannot
-- see the last changes of an agent's previous lock holder, such as a delivery that waits for one of these.
WITH old AS MATERIALIZED (
    SELECT id, chain_id, identity_registry, agent_id
      FROM herald.work
     WHERE seq < $3 AND accepted_at < now() - $1::interval AND status IN ('queued', 'waiting', 'held')
     ORDER BY seq
     LIMIT $2
), free AS MATERIALIZED (
    SELECT w.*
      FROM (SELECT DISTINCT chain_id, identity_registry, agent_id FROM old ORDER BY 1, 2, 3) w
     CROSS JOIN LATERAL (SELECT FROM herald.agents
                          WHERE chain_id = w.chain_id AND identity_registry = w.identity_registry AND agent_id = w.agent_id
                            FOR UPDATE SKIP LOCKED) g
), taken AS MATERIALIZED (
    SELECT d.id
      FROM old JOIN free USING (chain_id, identity_registry, agent_id)
     CROSS JOIN LATERAL (SELECT id FROM herald.work
                          WHERE id = old.id AND status IN ('queued', 'waiting', 'held') AND accepted_at < now() - $1::interval
                            AND (chain_id, identity_registry, agent_id) = (old.chain_id, old.identity_registry, old.agent_id)
                            FOR UPDATE SKIP LOCKED) d
)
SELECT id FROM taken
