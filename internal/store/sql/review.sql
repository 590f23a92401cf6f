-- review: schedule a review of a delivery, because a job of its own event has arrived again. A review that is already
-- scheduled keeps its time. The transaction has locked the delivery.
--
-- The newest hint gets a higher rank and the present time, as if it had arrived again. So another review follows one
-- that is being made (store.EndReview), and the result of a node that lags does not end the review
-- (ledger.Review.Recent). If the delivery has no hint, its own job becomes one.
--
-- $1 id of the delivery
INSERT INTO herald.hints AS n (delivery_id, rank, job, secret_headers, source, trust, review_at)
SELECT id, coalesce((SELECT max(rank) FROM herald.hints WHERE delivery_id = $1), 0), job, secret_headers, source, trust, now()
  FROM herald.history WHERE id = $1
ON CONFLICT (delivery_id, rank) DO UPDATE
   SET rank = n.rank + 1, created_at = now(),
       review_at = CASE WHEN EXISTS (SELECT FROM herald.hints WHERE delivery_id = $1 AND review_at IS NOT NULL) THEN n.review_at ELSE now() END
