-- displace: a rejected or vanished row gives its key to another event that really holds it. It keeps its id.
--
-- $1 id   $2 key   $3 true: whatever it is, its event is on the chain no more, as far as that was read
UPDATE herald.deliveries
   SET key = key || '~' || id::text, updated_at = now()
 WHERE id = $1
   AND key = $2
   AND ($3
     OR (status = 'cancelled' AND reason = 'reorg')
     OR (status = 'rejected' AND reason IN ('event_not_found', 'invalid_job')))
RETURNING key
