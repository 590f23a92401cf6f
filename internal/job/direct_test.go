package job

import (
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestDirectField(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]string{
		`{}`: "",
		`{"toolName":"agent.receiveFeedback","includeFileContent":false,"timeoutMs":5000}`:        "",
		`{"toolName":"agent_receiveFeedback"}`:                                                    "",
		`{"toolName":"receiveFeedback"}`:                                                          "",
		`{"toolName":"agent.receiveRevocation"}`:                                                  "action.toolName",
		`{"toolName":"agent.receiveFeedbackBatch"}`:                                               "action.toolName",
		`{"verifyFileHash":false}`:                                                                "action.verifyFileHash",
		`{"payloadTemplate":{"score":"{{score}}"}}`:                                               "action.payloadTemplate",
		`{"resolveEndpoint":false,"endpoint":{"transport":"http","url":"https://a.example/mcp"}}`: "action.endpoint",
		`{"resolveEndpoint":false,"endpoint":{"transport":"http","url":"https://a.example/mcp","headers":{"X-Key":"k"}}}`:     "action.endpoint",
		`{"resolveEndpoint":true,"endpoint":{"transport":"http","url":"https://a.example/mcp","headers":{"X-Key":"unused"}}}`: "",
	} {
		heraldtest.Equal(t, action, mustParse(t, feedback("action="+action)).DirectField(), want)
	}
	updated := mustParse(t, `{"type":"AgentUpdated","chainId":8453,"agentId":"42"}`)
	heraldtest.Equal(t, "AgentUpdated", updated.DirectField(), "")
}
