-- lease_part: return the last agent of the next part of the agents, which has at least a number of dispatched and running
-- deliveries. Strangers can make so many that a look at all of them would take longer than the reconciler waits.
--
-- $1 $2 $3 chain, identity registry and id of the agent before the part   $4 the number less one
--
-- Returns no row if the part has all remaining agents.
SELECT chain_id, identity_registry, agent_id::text
  FROM herald.work w
 WHERE place = 'out' AND (chain_id, identity_registry, agent_id) > ($1, $2, $3::text::numeric)
 ORDER BY w.chain_id, w.identity_registry, w.agent_id
OFFSET $4 LIMIT 1
