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
		body := `{"type":"NewFeedback","chainId":8453,"agentId":"42","clientAddress":"0x1111111111111111111111111111111111111111",` +
			`"feedbackIndex":7,"value":"99","valueDecimals":0,"action":` + action + `}`
		j, err := Parse([]byte(body), Limits{})
		if err != nil {
			t.Fatalf("%s: %v", action, err)
		}
		heraldtest.Equal(t, action, j.DirectField(), want)
	}
	if j, err := Parse([]byte(`{"type":"AgentUpdated","chainId":8453,"agentId":"42"}`), Limits{}); err != nil || j.DirectField() != "" {
		t.Errorf("AgentUpdated: %q, %v", j.DirectField(), err)
	}
}
