package job

import "strings"

// DirectField returns the path of the first field with which the job overrides where or how its agent is called, or ""
// if it overrides nothing. These fields are action.endpoint, action.payloadTemplate, an action.toolName that is neither
// the kind's tool nor its alias, and action.verifyFileHash false. Only senders that the operator trusts with direct
// calls may set them (docs/api.md).
func (j Job) DirectField() string {
	switch a := j.Action; {
	case j.Kind == KindAgentUpdated:
		return ""
	case !a.ResolveEndpoint || a.Endpoint != nil:
		return "action.endpoint"
	case len(a.PayloadTemplate) > 0:
		return "action.payloadTemplate"
	case !isOwnTool(a.ToolName, j.Kind):
		return "action.toolName"
	case !a.VerifyFileHash:
		return "action.verifyFileHash"
	}
	return ""
}

// isOwnTool reports whether a name is the tool of a kind, or one of its spellings that readTool accepts.
func isOwnTool(name string, k Kind) bool {
	own := strings.TrimPrefix(defaultTool(k), "agent.")
	for _, prefix := range []string{"agent.", "agent_", "agent/", ""} {
		if name == prefix+own {
			return true
		}
	}
	return false
}
