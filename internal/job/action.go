package job

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/secret"
	"golang.org/x/net/http/httpguts"
)

// Bounds of the fields of Action and Endpoint. maxArgs and maxHeaders count elements, minTimeoutMs is in milliseconds,
// and the others are lengths in bytes.
const (
	minTimeoutMs  = 1000
	maxToolName   = 128 // MCP (SEP-986)
	maxURL        = 4 << 10
	maxCommand    = 4 << 10
	maxArgs       = 64
	maxHeaders    = 32
	maxHeaderText = 8 << 10
)

// DefaultTool returns the tool to call for a job of kind k that names no tool. It returns "" for KindAgentUpdated,
// which calls no tool, and for an unknown kind.
func DefaultTool(k Kind) string {
	switch k {
	case KindNewFeedback:
		return "agent.receiveFeedback"
	case KindFeedbackRevoked:
		return "agent.receiveRevocation"
	case KindResponseAppended:
		return "agent.receiveResponse"
	case KindValidationResponse:
		return "agent.receiveValidation"
	}
	return ""
}

// defaultAction returns the Action of a job of kind k whose JSON has no action: call DefaultTool(k) at the endpoint
// that the agent registered, with the content of the file, after comparing it with its hash.
func defaultAction(k Kind) Action {
	return Action{ToolName: DefaultTool(k), ResolveEndpoint: true, IncludeFileContent: true, VerifyFileHash: true}
}

// readAction reads the field called name, the Action of a job of kind k. Fields that are missing in it have the values
// of defaultAction. It refuses an endpoint without resolveEndpoint. If resolveEndpoint is false, it refuses a missing
// endpoint.
func (r *fieldReader) readAction(name string, k Kind) Action {
	a := defaultAction(k)
	in := r.readKnown(name, "toolName", "resolveEndpoint", "endpoint", "includeFileContent", "verifyFileHash",
		"payloadTemplate", "timeoutMs")
	if in == nil {
		return a
	}
	if in.has("toolName") {
		a.ToolName = in.readTool("toolName")
	}
	a.ResolveEndpoint = in.readBool("resolveEndpoint", true)
	a.IncludeFileContent = in.readBool("includeFileContent", true)
	a.VerifyFileHash = in.readBool("verifyFileHash", true)
	switch e := in.readEndpoint("endpoint"); {
	case !a.ResolveEndpoint && !in.has("endpoint"):
		in.fail(refuse(in.pathOf("endpoint"), "is missing although resolveEndpoint is false"))
	case !a.ResolveEndpoint:
		a.Endpoint = e
	case in.has("endpoint") && !in.has("resolveEndpoint"):
		// Ignoring the endpoint would send the event to another address than the sender wrote. A sender that sets
		// resolveEndpoint to true accepts that the endpoint is not used; then it is validated and dropped, together
		// with its headers.
		in.fail(refuse(in.pathOf("endpoint"),
			"is used only when resolveEndpoint is false: set that, or leave this out"))
	}
	a.PayloadTemplate = in.readTemplate("payloadTemplate", k)
	a.TimeoutMs = in.readTimeout("timeoutMs")
	r.fail(in.err)
	return a
}

// readTool reads the name of a tool. It accepts names that begin with agent.receive, agent_receive or agent/receive,
// the names in bareTools, and those in Limits.Tools. It refuses all other names, so that a job cannot call a tool with
// another purpose, such as receiveFunds.
func (r *fieldReader) readTool(name string) string {
	t := r.readText(name, maxToolName)
	if slices.Contains(r.limits.Tools, t) || slices.Contains(bareTools, t) {
		return t
	}
	for _, prefix := range []string{"agent.receive", "agent_receive", "agent/receive"} {
		if rest, ok := strings.CutPrefix(t, prefix); ok && rest != "" &&
			!strings.ContainsFunc(rest, isNoToolCharacter) {
			return t
		}
	}
	r.fail(refuse(r.pathOf(name), "is not a tool that may be named here: agent.receive… or one of HERALD_TOOLS"))
	return t
}

// bareTools are the tool names that DefaultTool returns, without their prefix "agent.".
var bareTools = []string{"receiveFeedback", "receiveRevocation", "receiveResponse", "receiveValidation"}

// isNoToolCharacter reports whether MCP forbids r in the name of a tool.
func isNoToolCharacter(r rune) bool {
	return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-.", r))
}

// readTimeout reads a number of milliseconds, and returns 0 if the field is absent. It refuses a number below
// minTimeoutMs. It returns Limits.MaxTimeout for a number above that limit.
func (r *fieldReader) readTimeout(name string) int {
	if !r.has(name) {
		return 0
	}
	most := uint64(r.limits.MaxTimeout.Milliseconds())
	return int(min(r.readUint(name, min(minTimeoutMs, most), 1<<64-1), most))
}

// readEndpoint reads the field called name, an endpoint in Herald's form. It returns nil if the field is absent, not an
// object, or has an unknown member. It refuses command and args with the transports http and sse, and url and headers
// with stdio.
func (r *fieldReader) readEndpoint(name string) *Endpoint {
	in := r.readKnown(name, "transport", "url", "headers", "command", "args")
	if in == nil {
		return nil
	}
	e := &Endpoint{Transport: in.readText("transport", maxText)}
	var foreign []string
	switch e.Transport {
	case "http", "sse":
		foreign = []string{"command", "args"}
	case "stdio":
		foreign = []string{"url", "headers"}
	}
	in.readAddressOf(e, "transport")
	for _, f := range foreign {
		if in.has(f) {
			in.fail(refuse(in.pathOf(f), "is not used with transport %s", e.Transport))
		}
	}
	r.fail(in.err)
	return e
}

// readAddressOf sets the fields of e that e.Transport uses: URL and Headers for http and sse, Command and Args for
// stdio. It refuses any other transport. transportField is the name of the field from which the caller read the
// transport; the refusal contains its path.
func (r *fieldReader) readAddressOf(e *Endpoint, transportField string) {
	switch e.Transport {
	case "http", "sse":
		e.URL, e.Headers = r.readURL("url"), r.readHeaders("headers")
	case "stdio":
		if e.Command, e.Args = r.readText("command", maxCommand), r.readStrings("args", maxArgs); e.Command == "" {
			r.fail(refuse(r.pathOf("command"), "is missing"))
		}
	default:
		r.fail(refuse(r.pathOf(transportField), "must be http, sse or stdio"))
	}
}

// readURL reads an http or https URL without user and password. It refuses an absent field.
func (r *fieldReader) readURL(name string) string {
	raw := r.readText(name, maxURL)
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		r.fail(refuse(r.pathOf(name), "is missing"))
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		r.fail(refuse(r.pathOf(name), "must be an http or https URL"))
	case u.User != nil:
		r.fail(refuse(r.pathOf(name), "must not hold a user or password: a job is stored in clear, headers are not"))
	}
	return raw
}

// readHeaders reads an object of HTTP headers and returns their values by canonical name. It returns nil if the field
// is absent, not an object, or has more than maxHeaders members. The values are secret, so no refusal contains one.
func (r *fieldReader) readHeaders(name string) map[string]secret.Secret {
	v, in := r.readObject(name)
	if in == nil {
		return nil
	}
	if len(in.object.Members) > maxHeaders {
		r.fail(refuse(v.Path(), "must be at most %d headers", maxHeaders))
		return nil
	}
	out := make(map[string]secret.Secret, len(in.object.Members))
	for _, m := range in.object.Members {
		header := http.CanonicalHeaderKey(m.Name)
		value, _ := m.Data.(string)
		switch _, twice := out[header]; {
		case !httpguts.ValidHeaderFieldName(m.Name):
			r.fail(refuse(m.Path(), "is not a header's name"))
		case isForeignHeader(header):
			r.fail(refuse(m.Path(), "cannot be set: it belongs to HTTP, to MCP or to Herald"))
		case twice:
			r.fail(refuse(m.Path(), "is given twice, in another spelling"))
		case !isHeaderText(value):
			r.fail(refuse(m.Path(), mustBeHeaderText))
		}
		out[header] = secret.New(value)
	}
	return out
}

const mustBeHeaderText = "must be a string of 1 to 8192 printable ASCII characters"

// isHeaderText reports whether s can be the value of a job's header: 1 to maxHeaderText (8192) printable ASCII
// characters. The space is one of them.
func isHeaderText(s string) bool {
	return s != "" && len(s) <= maxHeaderText &&
		!strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// isForeignHeader reports whether a job must not set the header with this canonical name. It returns true for headers
// of the connection and of the message (RFC 9110 §7.6.1), for cookies, for headers that MCP's transports set, and for
// headers that make net/http or an agent repeat a request.
func isForeignHeader(canonical string) bool {
	switch canonical {
	case "Host", "Cookie", "Connection", "Keep-Alive", "Proxy-Authorization", "Proxy-Authenticate",
		"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Content-Type",
		"Content-Encoding", "Accept", "Accept-Encoding", "Expect", "Last-Event-Id", "Idempotency-Key",
		"X-Idempotency-Key", "Traceparent", "Tracestate":
		return true
	}
	return strings.HasPrefix(canonical, "Mcp-")
}
