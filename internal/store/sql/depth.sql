-- depth: how many deliveries are open, by status, and how late the most overdue of the waits is, in seconds.
SELECT status, count(*), coalesce(extract(epoch FROM max(now() - next_attempt_at) FILTER (WHERE status = 'waiting')), 0)::float8
  FROM herald.deliveries
 WHERE finished_at IS NULL AND status IN ('queued', 'running', 'waiting', 'held')
 GROUP BY status
