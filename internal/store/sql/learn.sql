-- learn: what somebody found out about an agent without a delivery. One that is not known yet is made known.
--
-- $1 chain id    $2 identity registry   $3 agent id
-- $4 state, or null: it stays           $5 endpoint, $6 protocol, $7 server info jsonb, $8 tools jsonb; null: they stay
-- $9 error, or null: the last one stays
--
-- Whether it is disabled is somebody else's decision, and what counts as success is a delivery's.
INSERT INTO herald.agents AS g (chain_id, identity_registry, agent_id, state, endpoint, protocol, server_info, tools, last_error, last_error_at)
VALUES ($1, $2, $3, coalesce($4::text, 'pending'), $5, $6, $7, $8, $9::text, CASE WHEN $9::text IS NOT NULL THEN now() END)
ON CONFLICT (chain_id, identity_registry, agent_id) DO UPDATE
   SET state         = CASE WHEN NOT g.enabled THEN g.state ELSE coalesce($4::text, g.state) END,
       endpoint      = coalesce(excluded.endpoint, g.endpoint),
       protocol      = coalesce(excluded.protocol, g.protocol),
       server_info   = coalesce(excluded.server_info, g.server_info),
       tools         = coalesce(excluded.tools, g.tools),
       last_error    = coalesce(excluded.last_error, g.last_error),
       last_error_at = coalesce(excluded.last_error_at, g.last_error_at),
       updated_at    = now()
