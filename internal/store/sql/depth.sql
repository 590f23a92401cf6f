-- depth: how many deliveries are open, by status, and how late the most overdue of each is, in seconds: a wait that
-- is over, a task that nobody has claimed, a worker's lease that ran out.
--
-- What waits for its turn is counted by indexes alone (deliveries_line, deliveries_place); rows are read only of what was
-- handed to Redis.
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
