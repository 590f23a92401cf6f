-- retain: delete the job, result, sealed headers and error of deliveries that ended long ago, and their hints.
--
-- $1 age (interval)   $2 at most this many
--
-- Rows that another transaction has locked, for example a replay, are skipped. The index deliveries_kept has the same
-- condition on the four columns.
WITH old AS MATERIALIZED (
    SELECT id FROM herald.deliveries
     WHERE finished_at IS NOT NULL AND (job IS NOT NULL OR result IS NOT NULL OR secret_headers IS NOT NULL OR error IS NOT NULL)
       AND finished_at < now() - $1::interval
     ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM herald.hints WHERE delivery_id IN (SELECT id FROM old)
)
UPDATE herald.deliveries SET job = NULL, result = NULL, secret_headers = NULL, error = NULL, updated_at = now()
 WHERE id IN (SELECT id FROM old)
