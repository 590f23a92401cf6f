-- depth: count open deliveries by status, and return the lateness in seconds of the most overdue delivery of each
-- status.
--
-- A delivery is overdue if its wait has ended, if its task is due but not claimed, or if its lease has expired.
-- Backlog, waiting and held deliveries are counted from the index work_agent alone; only the rows of dispatched ones
-- are read.
SELECT status, sum(n)::bigint, greatest(coalesce(max(late), 0), 0)::float8
  FROM (SELECT 'queued' AS status, count(*) AS n, 0::float8 AS late FROM herald.work WHERE place = 'line'
        UNION ALL
        SELECT status, count(*), extract(epoch FROM max(now() - CASE status WHEN 'queued' THEN handed_at ELSE lease_until END))
          FROM herald.work WHERE place = 'out' GROUP BY 1
        UNION ALL
        SELECT 'waiting', count(*), 0 FROM herald.work WHERE place IN ('waiting', 'task')
        UNION ALL
        SELECT 'waiting', 0, extract(epoch FROM now() - min(next_attempt_at)) FROM herald.work WHERE (place || '') = 'waiting'
        UNION ALL
        SELECT 'waiting', 0, extract(epoch FROM now() - min(next_attempt_at)) FROM herald.work WHERE place = 'task'
        UNION ALL
        SELECT 'held', count(*), 0 FROM herald.work WHERE place = 'held') x
 GROUP BY 1
