-- complete: complete the attempt of a late success. The statement that took the claim away stored it without an outcome.
--
-- Runs after record.sql, with arguments of it. An attempt that has an outcome, or was undone, does not change. If the
-- delivery had already ended, the statement stores that the agent was called, which orphans.sql must know.
WITH late AS (
    UPDATE herald.history SET called = true WHERE id = (@ids::uuid[])[1] AND (@called::boolean[])[1] AND NOT called
)
UPDATE herald.attempts
   SET duration_ms = coalesce((@durations::int[])[1], least(extract(epoch FROM clock_timestamp() - started_at) * 1000, 2147483647)),
       step_us     = (@step_us::text[])[1]::integer[],
       stage       = (@stages::text[])[1],
       outcome     = (@statuses::text[])[1],
       arguments   = (@arguments::jsonb[])[1],
       response    = (@responses::jsonb[])[1],
       protocol    = (@protocols::text[])[1],
       reason      = (@reasons::text[])[1],
       error       = (@errors::text[])[1]
 WHERE delivery_id = (@ids::uuid[])[1] AND number = (@numbers::int[])[1] AND started_at = (@started_ats::timestamptz[])[1]
   AND outcome IS NULL
