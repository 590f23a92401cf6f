-- hint: add a hint (ledger.Hint) to a delivery, which the transaction has locked.
--
-- @delivery_id, @rank, @job jsonb, @sealed_headers or null, @source, @trust, @refuted
-- @review  true: also schedule a review, in which a worker reads the event again, unless one is scheduled
WITH counted AS (
    UPDATE herald.history SET hints = hints + 1, updated_at = now() WHERE id = @delivery_id
)
INSERT INTO herald.hints (delivery_id, rank, job, secret_headers, source, trust, refuted, review_at)
VALUES (@delivery_id, @rank, @job, @sealed_headers, @source, @trust, @refuted, CASE WHEN @review::boolean AND NOT EXISTS (SELECT FROM herald.hints WHERE delivery_id = @delivery_id AND review_at IS NOT NULL) THEN now() END)
