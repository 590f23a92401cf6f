-- redispatch: a dispatched delivery that Redis does not hold any more gets a new task. Nothing happens when it moved
-- on meanwhile.
--
-- $1 id   $2 n that was lost
UPDATE herald.deliveries
   SET dispatch = dispatch + 1, handed_at = now(), updated_at = now()
 WHERE id = $1 AND dispatch = $2 AND status IN ('queued', 'waiting') AND handed_at IS NOT NULL
RETURNING id, dispatch, kind, attempts, bulk OR replays > 0 AND attempts <= budget_base
