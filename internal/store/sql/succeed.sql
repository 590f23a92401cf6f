-- succeed: the chain does not show the event as the job of a recorded attempt says, so the next in line takes that job's place. It
-- follows record.sql in one transaction, which has the row locked since: who wants to join the line later finds the row as this leaves it.
--
-- $1 delivery id   $2 claim_no   $3 rank of the claim's job   $4 its transaction hash, or ''   $5 sum of its event   $6 sum of its action
--
-- A job that the chain refutes (rejected, event_not_found) is dropped. One whose event may still come (waiting, not_confirmed), or of which
-- the node says nothing (waiting, chain_unavailable), goes back into the line with its rank, until it is due again, and makes room only for
-- one that names another transaction: a node that lags must not put a later job before an earlier one that is as right. For the same reason
-- the first of each transaction and agent goes before all that name both. One whose agent has no slot (waiting, agent_busy) goes back too, and
-- makes room only for one of another agent: of those one is right at most.
-- Who names a transaction goes before all who name none, pending or not: those could hold the line until a block of their choice each.
-- What was called is left alone. The age counts from the job's own arrival, the budget begins again. Returns the status, and until when
-- the row waits.
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
       agent_id          = n.agent_id, -- of a validation it is content, which its key does not name
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
