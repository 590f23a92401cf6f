-- orphans: end the deliveries whose events a reorg has removed from the chain. Runs after the chain has been read up to
-- its newest block. The transaction has locked the agents.
--
-- $1 delivery ids uuid[] of list_orphans.sql; the statement skips those whose events were found again
--
-- A queued, waiting or held delivery is cancelled (reorg), and so is one that was filtered, or rejected as event_not_found. The
-- event of a running delivery stays orphaned: its call may be under way, and its result is known only when the attempt
-- ends.
--
-- maybe_called is true if the agent was called, or if an attempt has no outcome. The remembered event of a delivery
-- that was cancelled here and never called is deleted: if the event returns, the delivery's row is enough. The other
-- events become gone.
--
-- Returns the deliveries that this statement cancelled, and those that had ended before: whether cancelled here,
-- whether the agent was or may have been called, and the job.
WITH orphan AS (
    SELECT delivery_id AS id FROM herald.chain_events WHERE delivery_id = ANY($1) AND state = 'orphaned'
), stopped AS (
    UPDATE herald.work d
       SET status = 'cancelled', reason = 'reorg', error = NULL, handed_at = NULL, lease_until = NULL, next_attempt_at = NULL,
           finished_at = now(), updated_at = now()
      FROM orphan o
     WHERE d.id = o.id AND d.status IN ('queued', 'waiting', 'held')
    RETURNING d.id, d.status, d.key, d.called, d.chain_id, d.identity_registry, d.agent_id, d.kind, d.order_key, d.order_hash, d.order_seq, d.finished_at, d.turn
), corrected AS (
    UPDATE herald.history d
       SET status = 'cancelled', reason = 'reorg', error = NULL, finished_at = now(), updated_at = now()
      FROM orphan o
     WHERE d.id = o.id AND (d.status = 'rejected' AND d.reason = 'event_not_found' OR d.status = 'skipped' AND d.reason = 'filtered')
    RETURNING d.id, d.status, d.key, d.called, d.chain_id, d.identity_registry, d.agent_id, d.kind, d.order_key, d.order_hash, d.order_seq, d.finished_at, false AS turn
), cancelled AS MATERIALIZED (
    SELECT * FROM stopped UNION ALL SELECT * FROM corrected
), {{release cancelled}}, {{count_ended cancelled}}, ended AS (
    SELECT c.id, c.key, h.job, c.called, true AS now FROM cancelled c JOIN herald.history h ON h.id = c.id
     UNION ALL
    SELECT d.id, d.key, d.job, d.called, false
      FROM orphan o JOIN herald.history d ON d.id = o.id
     WHERE d.status IN ('delivered', 'dead', 'cancelled') OR d.status IN ('skipped', 'rejected') AND d.reason NOT IN ('filtered', 'event_not_found')
), decided AS (
    SELECT e.id, e.key, e.job, e.now,
           e.called OR EXISTS (SELECT FROM herald.attempts a WHERE a.delivery_id = e.id AND a.outcome IS NULL) AS maybe_called
      FROM ended e
), forgotten AS (
    DELETE FROM herald.chain_events e USING decided j
     WHERE e.delivery_id = j.id AND j.now AND NOT j.maybe_called
), gone AS (
    UPDATE herald.chain_events e SET state = 'gone'
      FROM decided j
     WHERE e.delivery_id = j.id AND NOT (j.now AND NOT j.maybe_called)
)
SELECT id, key, now, maybe_called, job FROM decided ORDER BY key
