-- lost_before: give new tasks to deliveries that were dispatched before Redis lost its data. A waiting delivery keeps
-- the end of its wait.
--
-- $1 before (timestamptz)   $2 at most this many
--
-- Each call sets handed_at, so the next call continues with other rows. It locks no agent, because the number of
-- dispatched deliveries does not change. It skips rows that another transaction has locked: waiting for them could
-- deadlock with a transaction that locks agents first. That transaction is moving them anyway; if it fails, the
-- reconciler finds them when they are overdue.
UPDATE herald.work
   SET dispatch = dispatch + 1, handed_at = now(), updated_at = now()
 WHERE id = ANY(ARRAY(SELECT id FROM herald.work
                       WHERE place IN ('out', 'task') AND status <> 'running' AND handed_at < $1
                       LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base, next_attempt_at
