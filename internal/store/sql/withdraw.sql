-- withdraw: end an open retraction because the event that it retracts is on the chain again.
--
-- The retraction becomes skipped (mined_again), or cancelled (reorg) if the agent may have received it. The transaction
-- has locked the agent.
--
-- $1 id of the retraction
-- Returns whether the agent was or may have been called with it.
WITH called AS (
    SELECT d.called OR d.status = 'running'
        OR EXISTS (SELECT FROM herald.attempts a WHERE a.delivery_id = d.id AND a.outcome IS NULL) AS maybe
      FROM herald.deliveries d WHERE d.id = $1
), ended AS (
    UPDATE herald.work d
       SET status = CASE WHEN c.maybe THEN 'cancelled' ELSE 'skipped' END, reason = CASE WHEN c.maybe THEN 'reorg' ELSE 'mined_again' END,
           error = NULL, handed_at = NULL, lease_until = NULL, next_attempt_at = NULL, finished_at = now(), updated_at = now()
      FROM called c
     WHERE d.id = $1 AND d.status IN ('queued', 'waiting', 'held')
    RETURNING d.status, d.id, d.kind, d.key, d.chain_id, d.identity_registry, d.agent_id, d.order_key, d.order_hash, d.order_seq, d.finished_at, d.turn
), {{release ended}}, {{count_ended ended}}
SELECT maybe FROM called
