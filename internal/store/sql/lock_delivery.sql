-- lock_delivery: lock the rows of a delivery, and wait for their locks. Runs before record.sql, which skips locked rows,
-- in the same transaction. That statement then finds the row, and sees everything that the lock's previous holder
-- committed. The transaction has locked the agent.
--
-- It locks the row of history first, as read_event.sql and hint.sql do: a job that names another identity registry
-- changes the delivery under another agent's lock.
--
-- $1 delivery id
WITH delivery AS MATERIALIZED (
    SELECT id FROM herald.history WHERE id = $1 FOR NO KEY UPDATE
)
SELECT FROM herald.work WHERE id = $1 AND (SELECT count(*) FROM delivery) >= 0 FOR NO KEY UPDATE
