-- stuck: how many deliveries do not move, by status and reason: what is held, and what is overdue: a wait that is over,
-- a task that nobody took, a lease that ran out.
--
-- $1 how late something must be before it counts (interval)
--
-- Three parts, each by an index of its own (deliveries_hold, deliveries_wait, deliveries_task): what waits in its turn
-- is not read, however much of it there is.
SELECT status, reason, sum(n)::bigint
  FROM (SELECT 'held' AS status, coalesce(reason, '') AS reason, count(*) AS n
          FROM herald.deliveries WHERE place = 'held' GROUP BY 2
        UNION ALL
        SELECT 'waiting', coalesce(reason, ''), count(*)
          FROM herald.deliveries WHERE place = 'waiting' AND handed_at IS NULL AND next_attempt_at < now() - $1::interval GROUP BY 2
        UNION ALL
        SELECT status, coalesce(reason, ''), count(*)
          FROM herald.deliveries
         WHERE handed_at IS NOT NULL AND status IN ('queued', 'running', 'waiting')
           AND now() - $1::interval > CASE status WHEN 'waiting' THEN next_attempt_at WHEN 'queued' THEN handed_at
                                                  WHEN 'running' THEN lease_until END
         GROUP BY 1, 2) x
 GROUP BY 1, 2
 ORDER BY 1, 3 DESC, 2
