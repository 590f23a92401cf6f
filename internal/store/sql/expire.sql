-- expire: what is too old dies. The agents are locked.
--
-- $1 ids uuid[]   $2 age (interval)
WITH changed AS (
    UPDATE herald.deliveries
       SET status = 'dead', reason = 'expired', handed_at = NULL, next_attempt_at = NULL, finished_at = now(), updated_at = now()
     WHERE id = ANY($1) AND status IN ('queued', 'waiting', 'held') AND accepted_at < now() - $2::interval
    RETURNING chain_id, identity_registry, agent_id
), dead AS (
    SELECT chain_id, identity_registry, agent_id, count(*) AS n FROM changed GROUP BY 1, 2, 3
), counted AS (
    UPDATE herald.agents g
       SET totals = totals || jsonb_build_object('dead', coalesce((totals ->> 'dead')::bigint, 0) + n), updated_at = now()
      FROM dead d
     WHERE g.chain_id = d.chain_id AND g.identity_registry = d.identity_registry AND g.agent_id = d.agent_id
)
SELECT count(*) FROM changed
