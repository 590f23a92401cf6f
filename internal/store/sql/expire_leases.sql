-- expire_leases: return deliveries whose lease has expired to the backlog, or end them as dead if they have used their
-- attempts.
--
-- The limit keeps a delivery that crashes its worker from doing so again and again. The attempt is stored without an
-- outcome, because its result is unknown. The new claim_no makes a late write of the old worker change nothing. The
-- transaction has locked the agents.
--
-- $1 ids uuid[]   $2 attempts of a budget
WITH expired AS MATERIALIZED (
    SELECT id, attempts, claimed_at
      FROM herald.work
     WHERE id = ANY($1) AND status = 'running' AND lease_until < now()
       FOR NO KEY UPDATE
), {{lost expired}}, changed AS (
    UPDATE herald.work
       SET status      = CASE WHEN attempts - budget_base >= $2 THEN 'dead' ELSE 'queued' END,
           reason      = CASE WHEN attempts - budget_base >= $2 THEN 'outcome_unknown' END,
           error       = 'the worker of attempt ' || attempts || ' ended before it could record what happened',
           finished_at = CASE WHEN attempts - budget_base >= $2 THEN now() END,
           claim_no    = nextval('herald.claim_no'),
           delays_until = CASE WHEN delays_until = 'infinity' THEN updated_at + interval '60 s' ELSE delays_until END, -- updated_at: the claim, or the last extension of its lease
           handed_at   = NULL, claimed_at = NULL, lease_until = NULL, updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM expired))
    RETURNING status, id, kind, key, chain_id, identity_registry, agent_id, order_key, order_hash, order_seq, finished_at, false AS turn
), {{release changed}}, dead AS (
    SELECT chain_id, identity_registry, agent_id, count(*) AS n FROM changed WHERE status = 'dead' GROUP BY 1, 2, 3
), counted AS (
    UPDATE herald.agents g
       SET totals = totals || jsonb_build_object('dead', coalesce((totals ->> 'dead')::bigint, 0) + n), updated_at = now()
      FROM dead d
     WHERE g.chain_id = d.chain_id AND g.identity_registry = d.identity_registry AND g.agent_id = d.agent_id
)
SELECT count(*), count(*) FILTER (WHERE status = 'dead') FROM changed
