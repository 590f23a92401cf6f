-- expire_leases: end the claims whose lease has expired. A delivery that has used its attempts becomes dead
-- (outcome_unknown). The others return to their agents' backlogs. The transaction has locked the agents.
--
-- The number of attempts is limited because a delivery may crash each worker that runs it. The attempt is stored
-- without an outcome, because its result is unknown. The new claim_no makes later writes of the old worker change
-- nothing.
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
           delays_until = CASE WHEN delays_until = 'infinity' THEN updated_at + interval '60 s' ELSE delays_until END, -- updated_at: time of the claim, or of the last extension of its lease
           handed_at   = NULL, claimed_at = NULL, lease_until = NULL, updated_at = now()
     WHERE id = ANY(ARRAY(SELECT id FROM expired))
    RETURNING status, id, kind, key, chain_id, identity_registry, agent_id, order_key, order_hash, order_seq, finished_at, turn
), {{release changed}}, {{count_ended changed}}
SELECT count(*), count(*) FILTER (WHERE status = 'dead') FROM changed
