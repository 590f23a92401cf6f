-- retain: delete the contents of deliveries that ended long ago, and their hints. Id, key, agent, status, reason, counters
-- and times stay.
--
-- $1 age (interval)   $2 at most this many   $3 all deliveries of that age have a seq below this one
--
-- Rows that another transaction has locked, for example a replay, are skipped.
WITH old AS MATERIALIZED (
    SELECT id FROM herald.history
     WHERE kept AND seq + 0 < $3 AND finished_at < now() - $1::interval
     ORDER BY seq + 0 LIMIT $2 FOR UPDATE SKIP LOCKED -- with plain seq, Postgres might choose history_seq
), gone AS (
    DELETE FROM herald.hints WHERE delivery_id IN (SELECT id FROM old)
)
UPDATE herald.history
   SET job = NULL, result = NULL, secret_headers = NULL, error = NULL, traceparent = NULL, tool_name = NULL, endpoint = NULL, file_verification = NULL,
       file_source = NULL, file_disagrees = NULL, corrected = NULL, source = '', kept = false, updated_at = now(),
       order_key = CASE WHEN NOT starts_with(key, order_key || '/') THEN order_key END
 WHERE id IN (SELECT id FROM old)
