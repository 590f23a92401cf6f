-- totals: what every worker knows of an agent, brought up to date with one attempt. Takes the agent's row lock, which
-- also makes the hand-out count of dispatch.sql exact: it must run before it, in the same transaction.
--
-- $1 chain id   $2 identity registry   $3 agent id   $4 status the attempt led to   $5 final: count it
-- $6 the agent answered and took it    $7 error the agent is to blame for, or null
-- $8 endpoint   $9 protocol            $10 server info jsonb
UPDATE herald.agents
   SET totals        = CASE WHEN $5 THEN totals || jsonb_build_object($4::text, coalesce((totals ->> $4::text)::bigint, 0) + 1)
                            ELSE totals END,
       state         = CASE WHEN NOT enabled THEN 'disabled' WHEN $6 THEN 'connected' WHEN $7::text IS NOT NULL THEN 'failed' ELSE state END,
       last_ok_at    = CASE WHEN $6 THEN now() ELSE last_ok_at END,
       last_error    = coalesce($7, last_error),
       last_error_at = CASE WHEN $7::text IS NOT NULL THEN now() ELSE last_error_at END,
       endpoint      = coalesce($8, endpoint),
       protocol      = coalesce($9, protocol),
       server_info   = coalesce($10, server_info),
       updated_at    = now()
 WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3
