-- withdraw: end an open retraction because the event that it retracts is on the chain again.
--
-- The retraction becomes skipped (mined_again). It stays open if the agent may have received it: the event then gets a
-- new delivery, and the agent must forget the old one. If a worker checks the retraction now, hints makes record.sql
-- queue it again. The transaction has locked the agent, but claims do not lock it: a worker may claim the retraction
-- while the statement runs, which then does not end it.
--
-- $1 id of the retraction
-- Returns whether the agent was or may have been called with it.
WITH called AS (
    SELECT d.called OR d.status = 'running'
        OR EXISTS (SELECT FROM herald.attempts a WHERE a.delivery_id = d.id AND a.outcome IS NULL) AS maybe,
           d.finished_at IS NULL AS open
      FROM herald.deliveries d WHERE d.id = $1
), ended AS (
    UPDATE herald.work d
       SET status = 'skipped', reason = 'mined_again', error = NULL, handed_at = NULL, lease_until = NULL, next_attempt_at = NULL,
           finished_at = now(), updated_at = now()
      FROM called c
     WHERE d.id = $1 AND NOT c.maybe AND d.status IN ('queued', 'waiting', 'held')
    RETURNING d.status, d.id, d.kind, d.key, d.chain_id, d.identity_registry, d.agent_id, d.order_key, d.order_hash, d.order_seq, d.finished_at, d.turn
), {{release ended}}, {{count_ended ended}}, decided AS (
    SELECT maybe OR open AND NOT EXISTS (SELECT FROM ended) AS maybe FROM called
), noted AS (
    UPDATE herald.history h SET hints = hints + 1 FROM decided c WHERE h.id = $1 AND c.maybe
)
SELECT maybe FROM decided
