-- stuck: count held and overdue deliveries, by status and reason.
--
-- A delivery is overdue if, at least $1 ago, its wait ended, its task was due but not claimed, or its lease expired.
--
-- $1 how late a delivery must be to count (interval)
--
-- Each of the three parts uses an index (work_agent, work_due). Deliveries in the backlog are not read.
SELECT status, reason, sum(n)::bigint
  FROM (SELECT 'held' AS status, coalesce(reason, '') AS reason, count(*) AS n
          FROM herald.work WHERE place = 'held' GROUP BY 2
        UNION ALL
        SELECT 'waiting', coalesce(reason, ''), count(*)
          FROM herald.work WHERE (place || '') = 'waiting' AND next_attempt_at < now() - $1::interval GROUP BY 2
        UNION ALL
        SELECT status, coalesce(reason, ''), count(*)
          FROM herald.work
         WHERE place IN ('out', 'task') AND handed_at IS NOT NULL
           AND now() - $1::interval > CASE status WHEN 'waiting' THEN next_attempt_at WHEN 'queued' THEN handed_at
                                                  WHEN 'running' THEN lease_until END
         GROUP BY 1, 2) x
 GROUP BY 1, 2
 ORDER BY 1, 3 DESC, 2
