-- expire_leases: return deliveries whose lease has expired to the backlog, or end them as dead if they have used their
-- attempts.
--
-- The limit keeps a delivery that crashes its worker from doing so again and again. The last attempt stays without an
-- outcome, because its result is unknown. The new claim_no makes a late write of the old worker change nothing. The
-- transaction has locked the agents.
--
-- $1 ids uuid[]   $2 attempts of a budget
WITH changed AS (
    UPDATE herald.work
       SET status      = CASE WHEN attempts - budget_base >= $2 THEN 'dead' ELSE 'queued' END,
           reason      = CASE WHEN attempts - budget_base >= $2 THEN 'outcome_unknown' END,
           error       = 'the worker of attempt ' || attempts || ' ended before it could record what happened',
           finished_at = CASE WHEN attempts - budget_base >= $2 THEN now() END,
           claim_no    = nextval('herald.claim_no'),
           delays_until = CASE WHEN delays_until = 'infinity' THEN updated_at + interval '60 s' ELSE delays_until END, -- updated_at: the claim, or the last extension of its lease
           handed_at   = NULL, lease_until = NULL, updated_at = now()
     WHERE id = ANY($1) AND status = 'running' AND lease_until < now()
    RETURNING status, id, kind, key, chain_id, identity_registry, agent_id, order_key, order_hash, order_seq, finished_at, false AS turn
), {{release changed}}, {{count_ended changed}}
SELECT count(*), count(*) FILTER (WHERE status = 'dead') FROM changed
