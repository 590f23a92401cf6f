-- The tables of the old backend that matter for a move to Herald, with the columns that its guide and migrations
-- document and a few example rows. docs/operator/old-backend.md and TestTokenImportFromTable use them.

CREATE TABLE triggers (
    id          text PRIMARY KEY DEFAULT gen_random_uuid()::text,
    user_id     text NOT NULL,
    name        text NOT NULL,
    description text,
    chain_id    integer NOT NULL,
    registry    text NOT NULL CHECK (registry IN ('identity', 'reputation', 'validation')),
    enabled     boolean DEFAULT true,
    is_stateful boolean DEFAULT false,
    created_at  timestamptz DEFAULT now(),
    updated_at  timestamptz DEFAULT now()
);

CREATE TABLE trigger_actions (
    id          serial PRIMARY KEY,
    trigger_id  text NOT NULL REFERENCES triggers (id) ON DELETE CASCADE,
    action_type text NOT NULL CHECK (action_type IN ('telegram', 'rest', 'mcp')),
    priority    integer DEFAULT 1,
    config      jsonb NOT NULL,
    created_at  timestamptz DEFAULT now()
);

CREATE TABLE action_results (
    id            text PRIMARY KEY DEFAULT gen_random_uuid()::text,
    job_id        text NOT NULL,
    trigger_id    text REFERENCES triggers (id) ON DELETE SET NULL,
    event_id      text,
    action_type   text NOT NULL CHECK (action_type IN ('telegram', 'rest', 'mcp')),
    status        text NOT NULL CHECK (status IN ('success', 'failed', 'retrying')),
    executed_at   timestamptz DEFAULT now(),
    duration_ms   integer,
    error_message text,
    response_data jsonb,
    retry_count   integer DEFAULT 0
);

CREATE TABLE agent_mcp_tokens (
    agent_id   bigint PRIMARY KEY,
    token      text NOT NULL,
    created_at timestamptz DEFAULT now(),
    updated_at timestamptz DEFAULT now()
);

INSERT INTO triggers (id, user_id, name, chain_id, registry) VALUES
    ('trigger-1', 'user-1', 'feedback to its agent', 8453, 'reputation'),
    ('trigger-2', 'user-1', 'low scores', 8453, 'reputation');

INSERT INTO trigger_actions (trigger_id, action_type, priority, config) VALUES
    ('trigger-1', 'mcp', 1, '{"resolve_endpoint": true, "tool_name": "agent.receiveFeedback", "verify_file_hash": true,
      "include_file_content": true, "validate_oasf": true, "payload_template": {"score": "{{score}}", "tag1": "{{tag1}}",
      "clientAddress": "{{client_address}}", "feedbackIndex": "{{feedback_index}}", "fileContent": "{{verified_file_content}}"}}'),
    ('trigger-1', 'mcp', 2, '{"server_url": "https://agent.example/mcp", "tool_name": "agent.receiveFeedback", "timeout_ms": 30000}'),
    ('trigger-2', 'telegram', 1, '{"chat_id": "1", "message_template": "{{score}}"}');

INSERT INTO action_results (job_id, trigger_id, event_id, action_type, status, duration_ms) VALUES
    ('job-1', 'trigger-1', 'reputation-8453-0x01-3', 'mcp', 'success', 120);

INSERT INTO agent_mcp_tokens (agent_id, token) VALUES (0, 'an agent''s token');
