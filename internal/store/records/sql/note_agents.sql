-- note_agents: return the agents that began to fail, were disabled or recovered since the last call, for alerts. The
-- table alerted_agents stores which agents were returned.
--
-- Of two concurrent calls, only one returns a change. The other waits for the primary key of alerted_agents, and then
-- finds nothing new.
--
--   failing    the first of at least two failed calls in a row was at least $1 ago, and the agent is enabled
--   disabled   the agent's row is disabled
--   recovered  a call has succeeded since the agent was returned as failing, or as disabled while it failed
--
-- Enabling an agent clears failing_since, but is no success: a failing agent that was disabled counts as returned as
-- failing, and later failures are returned again. Others are deleted from alerted_agents without an alert.
--
-- $1 how long calls must have failed (interval)   $2 limit
-- $3 $4 $5, $6 $7 $8: chain, identity registry and id of the agent before the part that is read, and of its last agent
--
-- Plan: a row of the other table is found by its key in a subquery that Postgres cannot pull up. With joins, Postgres
-- could read the whole table.
WITH trouble AS (
    SELECT g.chain_id, g.identity_registry, g.agent_id, 'failing' AS state, g.failing_since, g.state AS seen
      FROM herald.agents g
     WHERE g.failing_since <= now() - $1::interval AND g.enabled AND g.last_error_at > g.failing_since
       AND (g.chain_id, g.identity_registry, g.agent_id) > ($3, $4, $5::text::numeric)
       AND (g.chain_id, g.identity_registry, g.agent_id) <= ($6, $7, $8::text::numeric)
    UNION ALL
    SELECT g.chain_id, g.identity_registry, g.agent_id, 'disabled', g.failing_since, g.state
      FROM herald.agents g
     WHERE NOT g.enabled AND g.state = 'disabled' AND (g.state || '') <> '' -- the row or the servers file disables an agent of that state
       AND (g.chain_id, g.identity_registry, g.agent_id) > ($3, $4, $5::text::numeric)
       AND (g.chain_id, g.identity_registry, g.agent_id) <= ($6, $7, $8::text::numeric)
), news AS (
    SELECT w.* FROM trouble w
      LEFT JOIN LATERAL (SELECT state, failing_since FROM herald.alerted_agents
                          WHERE chain_id = w.chain_id AND identity_registry = w.identity_registry AND agent_id = w.agent_id OFFSET 0) a ON true
     WHERE a.state IS DISTINCT FROM w.state OR w.state = 'failing' AND a.failing_since <> w.failing_since
     LIMIT $2
), begun AS (
    INSERT INTO herald.alerted_agents AS a (chain_id, identity_registry, agent_id, state, failing_since)
    SELECT chain_id, identity_registry, agent_id, state, failing_since FROM news ORDER BY 1, 2, 3
    ON CONFLICT (chain_id, identity_registry, agent_id)
    DO UPDATE SET state = excluded.state, failing_since = coalesce(excluded.failing_since, a.failing_since)
     WHERE a.state <> excluded.state OR excluded.state = 'failing' AND a.failing_since <> excluded.failing_since
    RETURNING chain_id, identity_registry, agent_id
), enabled AS (
    UPDATE herald.alerted_agents a SET state = 'failing'
     WHERE (a.chain_id, a.identity_registry, a.agent_id) > ($3, $4, $5::text::numeric)
       AND (a.chain_id, a.identity_registry, a.agent_id) <= ($6, $7, $8::text::numeric)
       AND a.state = 'disabled'
       AND (SELECT g.enabled AND g.failing_since IS NULL AND a.failing_since > coalesce(g.last_ok_at, '-infinity') FROM herald.agents g
             WHERE g.chain_id = a.chain_id AND g.identity_registry = a.identity_registry AND g.agent_id = a.agent_id)
), ended AS (
    DELETE FROM herald.alerted_agents a
     WHERE (a.chain_id, a.identity_registry, a.agent_id) > ($3, $4, $5::text::numeric)
       AND (a.chain_id, a.identity_registry, a.agent_id) <= ($6, $7, $8::text::numeric)
       AND (SELECT g.enabled AND g.failing_since IS NULL AND (a.failing_since IS NULL OR g.last_ok_at >= a.failing_since) FROM herald.agents g
             WHERE g.chain_id = a.chain_id AND g.identity_registry = a.identity_registry AND g.agent_id = a.agent_id)
    RETURNING a.chain_id, a.identity_registry, a.agent_id, a.failing_since
)
SELECT n.state, n.chain_id, n.identity_registry, n.agent_id::text, n.failing_since, n.seen
  FROM news n JOIN begun USING (chain_id, identity_registry, agent_id)
UNION ALL
SELECT 'recovered', chain_id, identity_registry, agent_id::text, failing_since, '' FROM ended
 WHERE failing_since IS NOT NULL
