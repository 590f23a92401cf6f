-- held_disabled: deliveries that are held because their agents were disabled, with whether each agent still is, a
-- page at a time.
--
-- $1 chain id and $2 seq of the last one of the page before   $3 at most this many
SELECT d.chain_id, d.seq, d.identity_registry, d.agent_id::text, coalesce(g.enabled, true)
  FROM herald.deliveries d
  LEFT JOIN herald.agents g USING (chain_id, identity_registry, agent_id)
 WHERE d.place = 'held' AND d.reason = 'agent_disabled' AND (d.chain_id, d.seq) > ($1::bigint, $2::bigint)
 ORDER BY d.chain_id, d.seq
 LIMIT $3
