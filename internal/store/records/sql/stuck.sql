-- stuck: count held and overdue deliveries, by status and reason, up to a number of each.
--
-- A delivery is overdue if, at least $1 ago, its wait ended, its task was due but not claimed, or its lease expired.
--
-- $1 how late a delivery must be to count (interval)
-- $2 how many are counted: held ones of each reason, those that wait, and of those with a task, how many are read
--
-- Each of the three parts uses an index (work_held, work_due, work_agent). Deliveries in the backlog are not read.
-- Strangers can make many deliveries that are held or wait.
WITH RECURSIVE reasons AS (
    (SELECT reason FROM herald.work WHERE (place || '') = 'held' ORDER BY reason LIMIT 1)
    UNION ALL
    SELECT (SELECT reason FROM herald.work WHERE (place || '') = 'held' AND reason > r.reason ORDER BY reason LIMIT 1)
      FROM reasons r WHERE r.reason IS NOT NULL
)
SELECT status, reason, sum(n)::bigint
  FROM (SELECT 'held' AS status, r.reason, (SELECT count(*) FROM (SELECT FROM herald.work
                                             WHERE (place || '') = 'held' AND reason = r.reason LIMIT $2) x) AS n
          FROM reasons r WHERE r.reason IS NOT NULL
        UNION ALL
        SELECT 'waiting', coalesce(reason, ''), count(*)
          FROM (SELECT reason FROM herald.work WHERE (place || '') = 'waiting' AND next_attempt_at < now() - $1::interval LIMIT $2) x GROUP BY 2
        UNION ALL
        SELECT status, coalesce(reason, ''), count(*)
          FROM (SELECT status, reason, next_attempt_at, handed_at, lease_until FROM herald.work WHERE place IN ('out', 'task') LIMIT $2) x
         WHERE handed_at IS NOT NULL
           AND now() - $1::interval > CASE status WHEN 'waiting' THEN next_attempt_at WHEN 'queued' THEN handed_at
                                                  WHEN 'running' THEN lease_until END
         GROUP BY 1, 2) x
 GROUP BY 1, 2
 ORDER BY 1, 3 DESC, 2
