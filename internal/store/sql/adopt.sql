-- adopt: take back the attempt of a claim that has found the outcome of an earlier one. The agent is locked;
-- record.sql then completes the earlier one, in the same transaction.
--
-- $1 delivery id                       $2 claim_no
-- $3 started_at, $4 number of the claim's attempt
-- $5 started_at, $6 number of the earlier one   $7 true: that one was free, so it is taken back too
--
-- A free one whose number is not the last before the claim's keeps it, and its count: the attempts after it have
-- theirs.
-- One that has no attempt left holds later ones of its client as before its first.
-- Returns whether the claim is good and whether the earlier attempt is without outcome; nothing changes unless both.
WITH mine AS (
    SELECT FROM herald.deliveries WHERE id = $1 AND claim_no = $2 AND status = 'running'
), past AS (
    SELECT $7 AND $6::int = $4::int - 1 AS free
      FROM herald.attempts WHERE delivery_id = $1 AND number = $6::int AND started_at = $5 AND outcome IS NULL
), back AS (
    UPDATE herald.deliveries
       SET attempts = attempts - CASE WHEN (SELECT free FROM past) THEN 2 ELSE 1 END, updated_at = now(),
           holds_until = CASE WHEN holds_until IS NOT NULL AND (SELECT free FROM past) AND attempts = 2 THEN 'infinity' ELSE holds_until END
     WHERE id = $1 AND claim_no = $2 AND status = 'running' AND EXISTS (SELECT FROM past)
    RETURNING 1
), own AS (
    DELETE FROM herald.attempts WHERE delivery_id = $1 AND number = $4::int AND started_at = $3 AND EXISTS (SELECT FROM back)
), freed AS (
    DELETE FROM herald.attempts WHERE delivery_id = $1 AND number = $6::int AND started_at = $5 AND EXISTS (SELECT FROM back)
       AND (SELECT free FROM past)
)
SELECT EXISTS (SELECT FROM mine), EXISTS (SELECT FROM past)
