-- displace: rename the key of a delivery whose event is not on the chain, so that another event can use the key. The id
-- stays. An open delivery that is not running is cancelled (reorg).
--
-- $1 id   $2 key
WITH old AS (
    SELECT id, status IN ('queued', 'waiting', 'held') AS ends FROM herald.deliveries WHERE id = $1 AND key = $2 FOR UPDATE
), renamed AS (
    UPDATE herald.deliveries d
       SET key = d.key || '~' || d.id::text, updated_at = now(), next_attempt_at = NULL,
           status      = CASE WHEN ends THEN 'cancelled' ELSE status END,
           reason      = CASE WHEN ends THEN 'reorg' ELSE reason END,
           error       = CASE WHEN NOT ends THEN error END,
           handed_at   = CASE WHEN NOT ends THEN handed_at END,
           finished_at = CASE WHEN ends THEN now() ELSE finished_at END
      FROM old WHERE d.id = old.id
    RETURNING d.key, d.chain_id, d.identity_registry, d.agent_id, ends
), counted AS (
    UPDATE herald.agents g
       SET totals = totals || jsonb_build_object('cancelled', coalesce((totals ->> 'cancelled')::bigint, 0) + 1), updated_at = now()
      FROM renamed r
     WHERE r.ends AND g.chain_id = r.chain_id AND g.identity_registry = r.identity_registry AND g.agent_id = r.agent_id
)
SELECT key FROM renamed
