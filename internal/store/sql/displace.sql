-- displace: give another key to a delivery whose event is not on the chain, so that another event can use its key. The
-- id stays. An open delivery that is not running is cancelled (reorg), and so is a filtered one.
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
    RETURNING id, key AS renamed
), changed AS (
    UPDATE herald.work w
       SET key         = renamed, updated_at = now(),
           status      = CASE WHEN status <> 'running' THEN 'cancelled' ELSE status END,
           reason      = CASE WHEN status <> 'running' THEN 'reorg' ELSE reason END,
           error       = NULL,
           handed_at   = CASE WHEN status = 'running' THEN handed_at END,
           finished_at = CASE WHEN status <> 'running' THEN now() END
      FROM renamed r WHERE w.id = r.id AND w.id = $1
    RETURNING w.id, w.kind, $2 AS key, w.chain_id, w.identity_registry, w.agent_id, w.order_key, w.order_hash, w.order_seq, w.finished_at, w.turn
), {{release changed}}, counted AS (
    UPDATE herald.agents g
       SET totals = totals || jsonb_build_object('cancelled', coalesce((totals ->> 'cancelled')::bigint, 0) + 1), updated_at = now()
      FROM changed r
     WHERE r.finished_at IS NOT NULL AND g.chain_id = r.chain_id AND g.identity_registry = r.identity_registry AND g.agent_id = r.agent_id
)
SELECT renamed FROM renamed
