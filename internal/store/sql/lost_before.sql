-- lost_before: give new tasks to deliveries whose tasks were dispatched before Redis lost its data. A waiting delivery
-- keeps the end of its wait.
--
-- $1 before (timestamptz)   $2 at most this many
--
-- Each call sets handed_at, so the next call finds other rows. It locks no agent, because the number of dispatched
-- deliveries does not change. It skips locked rows: waiting for them could deadlock with a transaction that locks
-- agents first. Such a transaction is changing the row anyway; if it fails, the reconciler finds the row when its task
-- is overdue.
UPDATE herald.work
   SET dispatch = dispatch + 1, handed_at = now(), updated_at = now()
 WHERE id = ANY(ARRAY(SELECT id FROM herald.work
                       WHERE place IN ('out', 'task') AND status <> 'running' AND handed_at < $1
                       LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base, next_attempt_at
