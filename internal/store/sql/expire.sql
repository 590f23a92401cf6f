-- expire: end open deliveries that have reached an age. They become dead (expired), the oldest first.
--
-- Running deliveries are skipped; they end, or their lease expires first.
--
-- $1 age (interval)   $2 at most this many   $3 all deliveries of that age have a seq below this one
--
-- The statement skips deliveries that another transaction has locked, and those whose agent is locked; the next call
-- finds them. It locks agents before their deliveries, as lock_agents.sql does.
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
                            FOR UPDATE SKIP LOCKED) d
), changed AS (
    UPDATE herald.work
       SET status = 'dead', reason = 'expired', handed_at = NULL, next_attempt_at = NULL, finished_at = now(), updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM taken))
    RETURNING id, kind, key, chain_id, identity_registry, agent_id, order_key, order_hash, order_seq, finished_at, turn
), {{release changed}}, dead AS (
    SELECT chain_id, identity_registry, agent_id, count(*) AS n FROM changed GROUP BY 1, 2, 3
), counted AS (
    UPDATE herald.agents g
       SET totals = totals || jsonb_build_object('dead', coalesce((totals ->> 'dead')::bigint, 0) + n), updated_at = now()
      FROM dead d
     WHERE g.chain_id = d.chain_id AND g.identity_registry = d.identity_registry AND g.agent_id = d.agent_id
)
SELECT count(*) FROM changed
