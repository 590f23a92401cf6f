-- depth: how many deliveries are open, by status, and how late the most overdue of each is, in seconds: a wait that
-- is over, a task that nobody has claimed, a worker's lease that ran out.
SELECT status, count(*),
       greatest(coalesce(extract(epoch FROM max(now() - CASE status WHEN 'waiting' THEN next_attempt_at
                                                                    WHEN 'queued'  THEN handed_at
                                                                    WHEN 'running' THEN lease_until END)), 0), 0)::float8
  FROM herald.deliveries
 WHERE finished_at IS NULL AND status IN ('queued', 'running', 'waiting', 'held')
 GROUP BY status
