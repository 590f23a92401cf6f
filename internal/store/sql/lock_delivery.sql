-- lock_delivery: lock the rows of a delivery, that of work first, and wait for their locks. Runs before claim.sql or
-- record.sql, which skip locked rows, in the same transaction. These then find the row, and see everything that the
-- lock's previous holder committed.
--
-- $1 delivery id
WITH open AS MATERIALIZED (
    SELECT id FROM herald.work WHERE id = $1 FOR NO KEY UPDATE
)
SELECT FROM herald.history WHERE id = $1 AND (SELECT count(*) FROM open) >= 0 FOR NO KEY UPDATE
