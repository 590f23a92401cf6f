-- unfinished: the number of a delivery's last attempt without outcome, 0 if all have one, and whether the delivery
-- waits. Asked before a claim, which makes another: its worker died, or could not record what it knew.
--
-- $1 delivery id
SELECT coalesce(max(number), 0), coalesce((SELECT status = 'waiting' FROM herald.deliveries WHERE id = $1), false)
  FROM herald.attempts WHERE delivery_id = $1 AND outcome IS NULL
