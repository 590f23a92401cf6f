package job

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/secret"
	"golang.org/x/net/http/httpguts"
)

const (
	minTimeoutMs  = 1000
	maxToolName   = 128 // MCP (SEP-986)
	maxURL        = 4 << 10
	maxCommand    = 4 << 10
	maxArgs       = 64
	maxHeaders    = 32
	maxHeaderText = 8 << 10
)

// defaultTool is what a kind calls when the job names no tool (DESIGN §3).
func defaultTool(k Kind) string {
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

func defaultAction(k Kind) Action {
	return Action{ToolName: defaultTool(k), ResolveEndpoint: true, IncludeFileContent: true, VerifyFileHash: true}
}

func (s *scan) action(name string, k Kind) Action {
	a := defaultAction(k)
	in := s.sub(name, "toolName", "resolveEndpoint", "endpoint", "includeFileContent", "verifyFileHash", "payloadTemplate", "timeoutMs")
	if in == nil {
		return a
	}
	if in.has("toolName") {
		a.ToolName = in.tool("toolName")
	}
	a.ResolveEndpoint = in.bool("resolveEndpoint", true)
	a.IncludeFileContent = in.bool("includeFileContent", true)
	a.VerifyFileHash = in.bool("verifyFileHash", true)
	switch e := in.endpoint("endpoint"); {
	case !a.ResolveEndpoint && !in.has("endpoint"):
		in.fail(refuse(in.at("endpoint"), "is missing although resolveEndpoint is false"))
	case !a.ResolveEndpoint:
		a.Endpoint = e
	case in.has("endpoint") && !in.has("resolveEndpoint"):
		// To ignore it would send the event somewhere else than its enqueuer wrote. Whoever says true knows that it is not used;
		// then it is checked and not kept, its headers neither.
		in.fail(refuse(in.at("endpoint"), "is used only when resolveEndpoint is false: set that, or leave this out"))
	}
	a.PayloadTemplate = in.template("payloadTemplate", k)
	a.TimeoutMs = in.timeout("timeoutMs")
	s.fail(in.err)
	return a
}

// tool takes agent.receive* and its aliases, and what HERALD_TOOLS adds (DESIGN §9). Without "agent" before it the name says
// little (receiveFunds), so of those only the aliases of the default tools are taken.
func (s *scan) tool(name string) string {
	t := s.text(name, maxToolName)
	if slices.Contains(s.limits.Tools, t) || slices.Contains(bareTools, t) {
		return t
	}
	for _, prefix := range []string{"agent.receive", "agent_receive", "agent/receive"} {
		if rest, ok := strings.CutPrefix(t, prefix); ok && rest != "" && toolCharacters(rest) {
			return t
		}
	}
	s.fail(refuse(s.at(name), "is not a tool that may be named here: agent.receive… or one of HERALD_TOOLS"))
	return t
}

var bareTools = []string{"receiveFeedback", "receiveRevocation", "receiveResponse", "receiveValidation"}

func toolCharacters(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-.", r))
	}) < 0
}

// timeout reads milliseconds and clamps them to what the installation allows; 0 when absent.
func (s *scan) timeout(name string) int {
	if !s.has(name) {
		return 0
	}
	most := uint64(s.limits.MaxTimeout.Milliseconds())
	return int(min(s.uint(name, min(minTimeoutMs, most), 1<<64-1), most))
}

func (s *scan) endpoint(name string) *Endpoint {
	in := s.sub(name, "transport", "url", "headers", "command", "args")
	if in == nil {
		return nil
	}
	e := &Endpoint{Transport: in.text("transport", maxText)}
	var foreign []string
	switch e.Transport {
	case "http", "sse":
		foreign = []string{"command", "args"}
		e.URL, e.Headers = in.url("url"), in.headers("headers")
	case "stdio":
		foreign = []string{"url", "headers"}
		if !in.has("command") || in.text("command", maxCommand) == "" {
			in.fail(refuse(in.at("command"), "is missing"))
		}
		e.Command, e.Args = in.text("command", maxCommand), in.strings("args", maxArgs)
	default:
		in.fail(refuse(in.at("transport"), "must be http, sse or stdio"))
	}
	for _, f := range foreign {
		if in.has(f) {
			in.fail(refuse(in.at(f), "is not used with transport %s", e.Transport))
		}
	}
	s.fail(in.err)
	return e
}

func (s *scan) url(name string) string {
	raw := s.text(name, maxURL)
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		s.fail(refuse(s.at(name), "is missing"))
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		s.fail(refuse(s.at(name), "must be an http or https URL"))
	case u.User != nil:
		s.fail(refuse(s.at(name), "must not hold a user or password: a job is stored in clear, headers are not"))
	}
	return raw
}

// headers are secrets: no refusal shows a value.
func (s *scan) headers(name string) map[string]secret.Secret {
	n := s.object(name)
	if n == nil {
		return nil
	}
	o := n.value.(*object)
	if len(o.names) > maxHeaders {
		s.fail(refuse(n.path(), "must be at most %d headers", maxHeaders))
		return nil
	}
	out := make(map[string]secret.Secret, len(o.names))
	for _, given := range o.names {
		at := o.fields[given]
		value, _ := at.value.(string)
		header := http.CanonicalHeaderKey(given)
		switch _, twice := out[header]; {
		case !httpguts.ValidHeaderFieldName(given):
			s.fail(refuse(at.path(), "is not a header's name"))
		case foreignHeader(header):
			s.fail(refuse(at.path(), "cannot be set: it belongs to HTTP, to MCP or to Herald"))
		case twice:
			s.fail(refuse(at.path(), "is given twice, in another spelling"))
		case value == "" || len(value) > maxHeaderText || strings.IndexFunc(value, notHeaderText) >= 0:
			s.fail(refuse(at.path(), "must be a string of 1 to %d printable ASCII characters", maxHeaderText))
		}
		out[header] = secret.New(value)
	}
	return out
}

func notHeaderText(r rune) bool { return r < ' ' || r > '~' }

// foreignHeader: those of the connection and of the message (RFC 9110 §7.6.1), cookies, those that MCP's transports set, and
// those by which net/http or an agent would tell that a request may be repeated.
func foreignHeader(canonical string) bool {
	switch canonical {
	case "Host", "Cookie", "Connection", "Keep-Alive", "Proxy-Authorization", "Proxy-Authenticate", "Proxy-Connection", "Te",
		"Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Content-Type", "Content-Encoding", "Accept",
		"Accept-Encoding", "Expect", "Last-Event-Id", "Idempotency-Key", "X-Idempotency-Key", "Traceparent", "Tracestate":
		return true
	}
	return strings.HasPrefix(canonical, "Mcp-")
}
