-- lock_delivery: wait for a delivery's rows, the open one first. Runs before a statement that skips locked rows, in the
-- same transaction: that statement then sees everything that the previous holder of the lock committed.
--
-- $1 delivery id
WITH open AS MATERIALIZED (
    SELECT id FROM herald.work WHERE id = $1 FOR NO KEY UPDATE
)
SELECT FROM herald.history WHERE id = $1 AND (SELECT count(*) FROM open) >= 0 FOR NO KEY UPDATE
