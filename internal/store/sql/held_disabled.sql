-- held_disabled: list the deliveries that were held because their agents were disabled, and whether each agent is
-- enabled now.
--
-- $1 chain id and $2 seq of the last row of the previous page   $3 at most this many
SELECT d.chain_id, d.seq, d.identity_registry, d.agent_id::text, coalesce(g.enabled, true)
  FROM herald.work d
  LEFT JOIN herald.agents g USING (chain_id, identity_registry, agent_id)
 WHERE d.place = 'held' AND d.reason = 'agent_disabled' AND (d.chain_id, d.seq) > ($1::bigint, $2::bigint)
 ORDER BY d.chain_id, d.seq
 LIMIT $3
