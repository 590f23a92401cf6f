package trial

import (
	"encoding/json"
	"fmt"

	"github.com/agentherald/herald/internal/job"
	"github.com/google/uuid"
)

// LegacyList is the Redis list to which the old backend pushes its jobs.
const LegacyList = "action_jobs"

// OldJob returns the job of Agents.Line as an ActionJob of the old backend, with the agent's endpoint, and the
// delivery's id.
func (a *Agents) OldJob(i, serial int) (line []byte, id uuid.UUID, err error) {
	const registry = "0x8004baa17c55a88189ae136b182e5fda19de9b63"
	client, transaction := fmt.Sprintf("0x%040x", serial+1), fmt.Sprintf("0x%064x", serial+1)
	event := fmt.Sprintf("reputation-8453-%s-0", transaction)
	line, err = json.Marshal(map[string]any{"id": uuid.NewString(), "trigger_id": "trigger-1", "event_id": event,
		"action_type": "mcp", "priority": 1, "created_at": "2026-01-11T00:00:00Z",
		"config": map[string]any{"server_url": a.URL(i), "tool_name": "agent.receiveFeedback", "timeout_ms": 30000},
		"event_data": map[string]any{"event_id": event, "chain_id": 8453, "block_number": 41700000, "registry": "reputation",
			"event_type": "NewFeedback", "timestamp": 1770000000, "transaction_hash": transaction, "agent_id": i + 1,
			"owner": nil, "token_uri": nil, "client_address": client, "feedback_index": 1, "score": 95, "tag1": "",
			"tag2": nil, "file_uri": nil, "file_hash": nil}})
	return line, job.IDOf(fmt.Sprintf("eip155:8453:%s/%d/%s/1#NewFeedback", registry, i+1, client)), err
}
