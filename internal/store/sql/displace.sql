-- displace: rename the key of a rejected or vanished delivery, so that another event can use the key. The id stays.
--
-- $1 id   $2 key   $3 true: rename it in any status, because its event is not on the chain as far as the chain was read
UPDATE herald.deliveries
   SET key = key || '~' || id::text, updated_at = now()
 WHERE id = $1
   AND key = $2
   AND ($3
     OR (status = 'cancelled' AND reason = 'reorg')
     OR (status = 'rejected' AND reason IN ('event_not_found', 'invalid_job')))
RETURNING key
