-- depth: count open deliveries by status, with the lateness in seconds of the most overdue delivery of each status.
--
-- A delivery is overdue when its wait has ended, when its task is not claimed, or when its worker's lease has expired.
-- Backlog, waiting and held deliveries are counted from indexes alone (deliveries_next, deliveries_place). Only the
-- rows of dispatched deliveries are read.
SELECT status, sum(n)::bigint, greatest(coalesce(max(late), 0), 0)::float8
  FROM (SELECT 'queued' AS status, count(*) AS n, 0::float8 AS late FROM herald.deliveries WHERE place = 'line'
        UNION ALL
        SELECT status, count(*), extract(epoch FROM max(now() - CASE status WHEN 'queued' THEN handed_at ELSE lease_until END))
          FROM herald.deliveries WHERE place = 'out' GROUP BY 1
        UNION ALL
        SELECT 'waiting', count(*), 0 FROM herald.deliveries WHERE place = 'waiting'
        UNION ALL
        SELECT 'waiting', 0, extract(epoch FROM now() - min(next_attempt_at)) FROM herald.deliveries WHERE place = 'waiting' AND handed_at IS NULL
        UNION ALL
        SELECT 'waiting', 0, extract(epoch FROM now() - min(next_attempt_at)) FROM herald.deliveries WHERE handed_at IS NOT NULL AND status = 'waiting'
        UNION ALL
        SELECT 'held', count(*), 0 FROM herald.deliveries WHERE place = 'held') x
 GROUP BY 1
