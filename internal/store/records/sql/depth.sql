-- depth: count open deliveries by status, up to a number of each place, and return the lateness in seconds of the most
-- overdue delivery of each status.
--
-- A delivery is overdue if its wait has ended, if its task is due but not claimed, or if its lease has expired.
-- Backlog, waiting and held deliveries are counted from the index work_agent alone; only the rows of dispatched ones
-- are read.
--
-- $1 how many are counted of each place, and half as many of those whose rows are read
SELECT status, sum(n)::bigint, greatest(coalesce(max(late), 0), 0)::float8
  FROM (SELECT CASE p.place WHEN 'line' THEN 'queued' WHEN 'task' THEN 'waiting' ELSE p.place END AS status,
               (SELECT count(*) FROM (SELECT FROM herald.work WHERE place = p.place LIMIT $1) x) AS n, 0::float8 AS late
          FROM unnest(ARRAY['line', 'waiting', 'task', 'held']) p (place)
        UNION ALL
        SELECT status, count(*), extract(epoch FROM max(now() - CASE status WHEN 'queued' THEN handed_at ELSE lease_until END))
          FROM (SELECT status, handed_at, lease_until FROM herald.work WHERE place = 'out' LIMIT $1 / 2) x GROUP BY 1
        UNION ALL
        SELECT 'waiting', 0, extract(epoch FROM now() - min(next_attempt_at)) FROM herald.work WHERE (place || '') = 'waiting'
        UNION ALL
        SELECT 'waiting', 0, extract(epoch FROM now() - min(next_attempt_at))
          FROM (SELECT next_attempt_at FROM herald.work WHERE place = 'task' LIMIT $1 / 2) x) x
 GROUP BY 1
