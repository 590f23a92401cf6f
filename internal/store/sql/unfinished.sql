-- unfinished: the number of a delivery's last attempt without an outcome (0: none), and whether the delivery waits.
--
-- Runs before a claim, which adds an attempt. An attempt has no outcome when its worker died or could not record the
-- outcome.
--
-- $1 delivery id
SELECT coalesce(max(number), 0), coalesce((SELECT status = 'waiting' FROM herald.deliveries WHERE id = $1), false)
  FROM herald.attempts WHERE delivery_id = $1 AND outcome IS NULL
