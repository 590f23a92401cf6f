-- lost_before: deliveries dispatched before Redis lost its data get new tasks; a wait keeps its time.
--
-- $1 before (timestamptz)   $2 at most this many
--
-- They are dispatched from now on, so the next call goes on with others. No agent is locked: what was dispatched
-- stays so, and what waits goes on waiting, so nothing counts differently against the limit. Rows that somebody holds
-- are passed over: waiting for them could close a circle with one who locks agents first, and who holds them is
-- moving them; if that fails the reconciler finds them late.
UPDATE herald.deliveries
   SET dispatch = dispatch + 1, handed_at = now(), updated_at = now()
 WHERE id IN (SELECT id FROM herald.deliveries
               WHERE status IN ('queued', 'waiting') AND handed_at IS NOT NULL AND handed_at < $1
               ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)
RETURNING id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base, next_attempt_at
