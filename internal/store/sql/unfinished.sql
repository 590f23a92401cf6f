-- unfinished: the number of a delivery's last attempt without outcome, 0 if all have one. Asked before a claim, which
-- makes another: its worker died, or could not record what it knew.
--
-- $1 delivery id
SELECT coalesce(max(number), 0) FROM herald.attempts WHERE delivery_id = $1 AND outcome IS NULL
