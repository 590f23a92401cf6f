-- hint: add a hint to a delivery that the transaction has locked.
--
-- @delivery_id, @rank, @job jsonb, @sealed_headers or null, @source, @trust, @refuted
-- @look  true: the delivery has ended or was called, so a worker looks at the chain again
WITH counted AS (
    UPDATE herald.deliveries SET hints = hints + 1, updated_at = now() WHERE id = @delivery_id
)
INSERT INTO herald.hints (delivery_id, rank, job, secret_headers, source, trust, refuted, look_at)
VALUES (@delivery_id, @rank, @job, @sealed_headers, @source, @trust, @refuted, CASE WHEN @look::boolean AND NOT EXISTS (SELECT FROM herald.hints WHERE delivery_id = @delivery_id AND look_at IS NOT NULL) THEN now() END)
