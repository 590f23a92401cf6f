-- redispatch: give a dispatched delivery a new task, because Redis has lost the present one.
--
-- Returns no row and changes nothing if the delivery no longer needs that task.
--
-- $1 id   $2 n of the lost task
UPDATE herald.work
   SET dispatch = dispatch + 1, handed_at = now(), updated_at = now()
 WHERE id = $1 AND dispatch = $2 AND status IN ('queued', 'waiting') AND handed_at IS NOT NULL
RETURNING id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base
