-- take_reviews: take the reviews that are due, and make each of them due again later, so that another worker gets it if
-- this one does not end it (EndReview). Deliveries whose job was deleted are omitted.
--
-- $1 at most this many   $2 time after which a review is due again
--
-- Returns the delivery, the highest rank of its hints, and whether its newest hint arrived within $2.
WITH due AS MATERIALIZED (
    SELECT delivery_id, rank FROM herald.hints WHERE review_at <= now() ORDER BY review_at LIMIT $1
       FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE herald.hints h SET review_at = now() + $2::interval
      FROM due WHERE (h.delivery_id, h.rank) = (due.delivery_id, due.rank)
    RETURNING h.delivery_id
)
SELECT d.id, d.key, d.job, n.rank, n.recent
  FROM taken t JOIN herald.history d ON d.id = t.delivery_id
       CROSS JOIN LATERAL (SELECT max(rank) AS rank, max(created_at) > now() - $2::interval AS recent
                             FROM herald.hints h WHERE h.delivery_id = d.id) n
 WHERE d.job IS NOT NULL
