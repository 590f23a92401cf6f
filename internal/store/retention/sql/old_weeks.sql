-- old_weeks: list the partitions of attempts whose week ended at least an age ago. A partition's name contains its
-- week's Monday (ensure_attempt_partitions).
--
-- $1 age (interval)
SELECT c.relname::text
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'herald.attempts'::regclass
   AND c.relname ~ '^attempts_[0-9]{8}$'
   AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 7)::timestamp AT TIME ZONE 'UTC' <= now() - $1::interval
 ORDER BY c.relname
