-- succeed: replace the job of a delivery by a candidate, because the chain does not have the event as the job says.
--
-- Runs after record.sql in one transaction. record.sql has locked the row, so a transaction that adds a candidate later
-- finds the row as this statement leaves it.
--
-- $1 delivery id   $2 claim_no   $3 rank of the claim's job   $4 its transaction hash, or ''   $5 hash of its event
-- $6 hash of its action
--
-- What happens to the present job:
--   - rejected, event_not_found: the chain refutes the job. It is dropped.
--   - waiting, not_confirmed or chain_unavailable: its event may still come, or the node does not answer. The job
--     becomes a candidate again, with its rank, until it is due. Only a candidate that names another transaction can
--     replace it: a node that lags must not put a later job before an earlier one that is as likely to be right.
--   - waiting, agent_busy: its agent has no slot. The job becomes a candidate again. Only a candidate of another agent
--     can replace it: at most one of the two is right.
--
-- Among the candidates, those that name a transaction go before those that name none, due or not: a job without a
-- transaction could name a future block and occupy the delivery until then. Of the candidates with the same transaction
-- and agent, only the one with the lowest rank is tried.
--
-- A delivery that was called does not change. The age counts from the arrival of the new job; the budget begins again.
-- Returns the delivery's status and next_attempt_at.
WITH mine AS MATERIALIZED (
    SELECT *, status = 'rejected' AS refuted
      FROM herald.deliveries
     WHERE id = $1 AND claim_no = $2 AND candidate_rank = $3 AND NOT called
       AND (status = 'rejected' AND reason = 'event_not_found' OR status = 'waiting' AND reason IN ('not_confirmed', 'chain_unavailable', 'agent_busy'))
), next AS (
    DELETE FROM herald.candidates
     WHERE delivery_id = $1
       AND rank = (SELECT c.rank
                     FROM mine m JOIN herald.candidates c ON c.delivery_id = $1
                    WHERE (m.refuted OR c.due < m.next_attempt_at
                                        AND CASE WHEN m.reason = 'agent_busy'
                                                 THEN (c.identity_registry, c.agent_id) <> (m.identity_registry, m.agent_id)
                                                 ELSE c.transaction_hash NOT IN ('', $4) END)
                      AND NOT EXISTS (SELECT FROM herald.candidates o
                                       WHERE o.delivery_id = $1 AND o.transaction_hash = c.transaction_hash AND o.rank < c.rank
                                         AND (o.identity_registry, o.agent_id) = (c.identity_registry, c.agent_id))
                    ORDER BY (c.transaction_hash = ''), c.due, c.rank LIMIT 1)
    RETURNING *
), back AS (
    INSERT INTO herald.candidates (delivery_id, rank, transaction_hash, event, action, identity_registry, agent_id, order_key, order_seq, job,
                                   secret_headers, due, created_at)
    SELECT id, candidate_rank, $4::text, $5::bytea, $6::bytea, identity_registry, agent_id, order_key, order_seq, job, secret_headers,
           next_attempt_at, accepted_at
      FROM mine WHERE NOT refuted AND EXISTS (SELECT FROM next)
    ON CONFLICT DO NOTHING
)
UPDATE herald.deliveries d
   SET status            = CASE WHEN n.due <= now() THEN 'queued' ELSE 'waiting' END,
       reason            = CASE WHEN n.due > now() THEN CASE WHEN d.reason = 'event_not_found' THEN 'not_confirmed' ELSE d.reason END END,
       next_attempt_at   = CASE WHEN n.due > now() THEN n.due END,
       error             = NULL,
       handed_at         = NULL,
       finished_at       = NULL,
       budget_base       = attempts,
       fetch_failures    = 0,
       candidate_rank    = n.rank,
       identity_registry = n.identity_registry,
       agent_id          = n.agent_id, -- the key of a validation does not contain the agent
       order_key         = n.order_key,
       order_seq         = n.order_seq,
       job               = n.job,
       secret_headers    = n.secret_headers,
       accepted_at       = greatest(d.accepted_at, n.created_at),
       holds_until       = CASE WHEN herald.has_order(kind) THEN timestamptz 'infinity' END,
       updated_at        = now()
  FROM next n
 WHERE d.id = $1
RETURNING d.status, d.next_attempt_at
