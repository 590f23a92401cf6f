-- adopt: undo the own attempt of a claim, because the outcome of an earlier attempt of the delivery is known.
-- record.sql then records that outcome in the same transaction. The transaction has locked the agent.
--
-- $1 delivery id                       $2 claim_no
-- $3 started_at, $4 number of the claim's attempt
-- $5 started_at, $6 number of the earlier attempt   $7 true: the earlier attempt was free, so it does not count either
--
-- To undo an attempt is to delete its row and to subtract it from the count. A free earlier attempt is undone only if
-- its number directly precedes that of the claim's attempt. Otherwise it stays, because the attempts after it keep
-- their numbers.
--
-- Returns whether the claim is still valid, and whether the earlier attempt still has no outcome. Nothing changes
-- unless both are true.
WITH mine AS (
    SELECT FROM herald.work WHERE id = $1 AND claim_no = $2 AND status = 'running'
), past AS (
    SELECT $7 AND $6::int = $4::int - 1 AS free
      FROM herald.attempts WHERE delivery_id = $1 AND number = $6::int AND started_at = $5 AND outcome IS NULL
), back AS (
    UPDATE herald.work
       SET attempts = attempts - CASE WHEN (SELECT free FROM past) THEN 2 ELSE 1 END, updated_at = now()
     WHERE id = $1 AND claim_no = $2 AND status = 'running' AND EXISTS (SELECT FROM past)
    RETURNING 1
), attempt AS (
    DELETE FROM herald.attempts WHERE delivery_id = $1 AND number = $4::int AND started_at = $3 AND EXISTS (SELECT FROM back)
), freed AS (
    DELETE FROM herald.attempts WHERE delivery_id = $1 AND number = $6::int AND started_at = $5 AND EXISTS (SELECT FROM back)
       AND (SELECT free FROM past)
)
SELECT EXISTS (SELECT FROM mine), EXISTS (SELECT FROM past)
