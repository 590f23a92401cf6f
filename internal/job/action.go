package job

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/secret"
	"golang.org/x/net/http/httpguts"
)

// defaultTools are what each kind calls when the job names no tool (DESIGN §3).
var defaultTools = map[Kind]string{
	KindNewFeedback: "agent.receiveFeedback", KindFeedbackRevoked: "agent.receiveRevocation",
	KindResponseAppended: "agent.receiveResponse", KindValidationResponse: "agent.receiveValidation",
}

// refusedHeaders belong to HTTP, to MCP or to Herald.
var refusedHeaders = []string{"Host", "Cookie", "Connection", "Keep-Alive", "Proxy-Authorization", "Proxy-Authenticate",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Content-Type", "Content-Encoding",
	"Accept", "Expect", "Last-Event-Id", "Idempotency-Key", "X-Idempotency-Key", "Traceparent", "Tracestate"}

func (s *scan) action(name string, k Kind) Action {
	a := Action{ToolName: defaultTools[k], ResolveEndpoint: true, IncludeFileContent: true, VerifyFileHash: true}
	in := s.sub(name, "toolName", "resolveEndpoint", "endpoint", "includeFileContent", "verifyFileHash", "payloadTemplate", "timeoutMs")
	if in == nil {
		return a
	}
	defer func() { s.fail(in.err) }()
	if in.has("toolName") {
		a.ToolName = in.tool("toolName")
	}
	a.ResolveEndpoint = in.bool("resolveEndpoint", true)
	a.IncludeFileContent = in.bool("includeFileContent", true)
	a.VerifyFileHash = in.bool("verifyFileHash", true)
	a.TimeoutMs = in.timeout("timeoutMs")
	switch {
	case a.ResolveEndpoint && in.has("endpoint"):
		in.fail(refuse(name+".endpoint", "is used only with resolveEndpoint false: leave one of them out"))
	case !a.ResolveEndpoint && !in.has("endpoint"):
		in.fail(refuse(name+".endpoint", "is missing although resolveEndpoint is false"))
	case !a.ResolveEndpoint:
		a.Endpoint = in.endpoint("endpoint")
	}
	if n := in.node("payloadTemplate"); n != nil {
		if _, ok := n.value.(*object); !ok {
			in.fail(refuse(n.path, "must be an object"))
		} else if r := checkTemplate(k, n); r != nil {
			in.fail(r)
		}
		a.PayloadTemplate = n.encode()
	}
	return a
}

// tool takes agent.receive* and its aliases, and what HERALD_TOOLS adds (DESIGN §9).
func (s *scan) tool(name string) string {
	const longest = 128 // MCP tool names (SEP-986)
	t := s.text(name, longest)
	if slices.Contains(s.limits.Tools, t) {
		return t
	}
	for _, prefix := range []string{"agent.receive", "agent_receive", "agent/receive", "receive"} {
		rest, ok := strings.CutPrefix(t, prefix)
		if ok && rest != "" && strings.Trim(rest, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == "" {
			return t
		}
	}
	s.fail(refuse(s.node(name).path, "is not a tool that may be named here: agent.receive… or one of HERALD_TOOLS"))
	return t
}

// timeout clamps to what the installation allows.
func (s *scan) timeout(name string) int {
	n := s.node(name)
	if n == nil {
		return 0
	}
	ms := s.uint(name, 1<<31-1)
	if ms < minTimeoutMs && s.err == nil {
		s.fail(refuse(n.path, "must be at least %d", minTimeoutMs))
	}
	return int(min(ms, uint64(s.limits.MaxTimeout.Milliseconds())))
}

func (s *scan) endpoint(name string) *Endpoint {
	in := s.sub(name, "transport", "url", "headers", "command", "args")
	if in == nil {
		return nil
	}
	defer func() { s.fail(in.err) }()
	path := s.node(name).path
	e := &Endpoint{Transport: in.text("transport", 16)}
	switch e.Transport {
	case "http", "sse":
		e.URL, e.Headers = in.url("url"), in.headers("headers")
		if in.has("command") || in.has("args") {
			in.fail(refuse(path, "has a url: command and args are for transport stdio"))
		}
	case "stdio":
		e.Command, e.Args = in.text("command", 4096), in.strings("args", maxArgs)
		if e.Command == "" {
			in.fail(refuse(join(path, "command"), "is missing"))
		}
		if in.has("url") || in.has("headers") {
			in.fail(refuse(path, "has transport stdio: url and headers are for http and sse"))
		}
	default:
		in.fail(refuse(join(path, "transport"), "must be http, sse or stdio"))
	}
	return e
}

func (s *scan) url(name string) string {
	raw := s.text(name, 4096)
	u, err := url.Parse(raw)
	switch {
	case raw == "":
		s.fail(refuse("action.endpoint."+name, "is missing"))
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		s.fail(refuse(s.node(name).path, "must be an http or https URL"))
	case u.User != nil:
		s.fail(refuse(s.node(name).path, "must not hold a user or password: use headers"))
	}
	return raw
}

// headers are secrets: nothing of their values goes into a refusal.
func (s *scan) headers(name string) map[string]secret.Secret {
	n := s.node(name)
	if n == nil {
		return nil
	}
	o, ok := n.value.(*object)
	if !ok || len(o.names) > maxHeaders {
		s.fail(refuse(n.path, "must be an object of at most %d headers", maxHeaders))
		return nil
	}
	out := make(map[string]secret.Secret, len(o.names))
	for _, h := range o.names {
		at := o.fields[h]
		v, isText := at.value.(string)
		canonical := http.CanonicalHeaderKey(h)
		_, twice := out[canonical]
		switch {
		case !httpguts.ValidHeaderFieldName(h):
			s.fail(refuse(at.path, "is not a header name"))
		case slices.Contains(refusedHeaders, canonical) || strings.HasPrefix(canonical, "Mcp-"):
			s.fail(refuse(at.path, "cannot be set: it belongs to HTTP or to the protocol"))
		case twice:
			s.fail(refuse(at.path, "is given twice, in another spelling"))
		case !isText || !httpguts.ValidHeaderFieldValue(v):
			s.fail(refuse(at.path, "must be a string that a header can hold"))
		}
		out[canonical] = secret.New(v)
	}
	return out
}
