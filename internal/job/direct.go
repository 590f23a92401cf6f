package job

import "strings"

// DirectField returns the path of the first field by which the job changes where or how its agent is called, or "" if
// the job has no such field. These fields are action.endpoint, action.payloadTemplate, an action.toolName for which
// isOwnTool is false, and an action.verifyFileHash that is false. Only senders with the scope direct may set them
// (docs/reference/api.md).
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

// isOwnTool reports whether name is the default tool of kind k: with the prefix agent., agent_ or agent/, or without
// one.
func isOwnTool(name string, k Kind) bool {
	own := strings.TrimPrefix(DefaultTool(k), "agent.")
	for _, prefix := range []string{"agent.", "agent_", "agent/", ""} {
		if name == prefix+own {
			return true
		}
	}
	return false
}
