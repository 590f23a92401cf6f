package job

import "strings"

// DirectField returns the path of the first field by which the job decides where or how its agent is called, in the place
// of the chain and the agent: action.endpoint, action.payloadTemplate, an action.toolName that is not the kind's own or
// an alias of it, action.verifyFileHash false. It is empty if there is none. Only senders that the operator trusts with a
// direct call may set these (docs/api.md).
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

// isOwnTool reports whether a name is the tool of a kind, or one of the spellings that readTool takes for it.
func isOwnTool(name string, k Kind) bool {
	own := strings.TrimPrefix(defaultTool(k), "agent.")
	for _, prefix := range []string{"agent.", "agent_", "agent/", ""} {
		if name == prefix+own {
			return true
		}
	}
	return false
}
