-- displace: give another key to a delivery whose event is not on the chain, so that another event can use its key. The
-- id stays. end.sql has ended the delivery before, if it was open and not running. A filtered one is cancelled (reorg).
--
-- The statement increases hints. So a worker whose check began before cannot bind a running delivery to the other event
-- (bind.sql), which has a delivery of its own.
--
-- $1 id   $2 its key; nothing changes if the delivery has another one by now
WITH renamed AS (
    UPDATE herald.history
       SET key = key || '~' || id::text, hints = hints + 1, updated_at = now(),
           status = CASE WHEN reason = 'filtered' THEN 'cancelled' ELSE status END,
           reason = CASE WHEN reason = 'filtered' THEN 'reorg' ELSE reason END
     WHERE id = $1 AND key = $2
    RETURNING id, key
), running AS (
    UPDATE herald.work w SET key = r.key, error = NULL, updated_at = now() FROM renamed r WHERE w.id = r.id AND w.id = $1
)
SELECT key FROM renamed
