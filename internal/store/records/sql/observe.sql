-- observe: store an observation of an agent that was made without a delivery (store.AgentObservation). Inserts the
-- agent if it has no row.
--
-- @chain_id, @registry, @agent_id
-- @state, or null: unchanged   @endpoint, @protocol, @server_info jsonb, @tools jsonb; null: unchanged
-- @error, or null: the last one stays
--
-- A disabled agent stays disabled. last_ok_at does not change: only a delivery counts as a success.
INSERT INTO herald.agents AS g (chain_id, identity_registry, agent_id, state, endpoint, protocol, server_info, tools, last_error, last_error_at)
VALUES (@chain_id, @registry, @agent_id, coalesce(@state::text, 'pending'), @endpoint, @protocol, @server_info, @tools, @error::text,
        CASE WHEN @error::text IS NOT NULL THEN now() END)
ON CONFLICT (chain_id, identity_registry, agent_id) DO UPDATE
   SET state         = CASE WHEN NOT g.enabled THEN g.state ELSE coalesce(@state::text, g.state) END,
       endpoint      = coalesce(excluded.endpoint, g.endpoint),
       protocol      = coalesce(excluded.protocol, g.protocol),
       server_info   = coalesce(excluded.server_info, g.server_info),
       tools         = coalesce(excluded.tools, g.tools),
       last_error    = coalesce(excluded.last_error, g.last_error),
       last_error_at = coalesce(excluded.last_error_at, g.last_error_at),
       updated_at    = now()
