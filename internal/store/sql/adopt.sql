-- adopt: make an earlier attempt of a claimed delivery the running one, because its outcome is known. record.sql then
-- inserts it again with the outcome, in the same transaction. The claim's own attempt does not count. The transaction
-- has locked the agent.
--
-- $1 delivery id, $2 claim_no   $3 number, $4 started_at of the earlier attempt
--
-- Returns whether the claim is still valid, and whether the earlier attempt has no outcome. Nothing changes unless both
-- are true.
WITH mine AS MATERIALIZED (
    SELECT FROM herald.work WHERE id = $1 AND claim_no = $2 AND status = 'running'
), past AS (
    DELETE FROM herald.attempts
     WHERE delivery_id = $1 AND number = $3::int AND started_at = $4 AND outcome IS NULL AND EXISTS (SELECT FROM mine)
    RETURNING 1
), back AS (
    UPDATE herald.work SET attempts = attempts - 1, claimed_at = $4, updated_at = now()
     WHERE id = $1 AND claim_no = $2 AND status = 'running' AND EXISTS (SELECT FROM past)
)
SELECT EXISTS (SELECT FROM mine), EXISTS (SELECT FROM past)
