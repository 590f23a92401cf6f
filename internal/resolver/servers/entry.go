package servers

import (
	"encoding/json"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job/policy"
	"golang.org/x/net/http/httpguts"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/strictjson"
	"github.com/agentherald/herald/internal/mcpcall"
)

// Bounds of one entry. Legitimate entries stay far below them.
const (
	maxURL     = 4 << 10
	maxList    = 256 // number of args, env, headers and tools, each
	maxName    = 120 // bytes of the name of a header or a variable
	maxTool    = 128 // bytes (MCP SEP-986)
	minTimeout = time.Second
	maxTimeout = time.Hour
)

// readObject returns v as an object. It reports fields that are not in known, unless known is empty. It returns nil if
// v is not an object.
func (p *parser) readObject(v *strictjson.Value, known ...string) *strictjson.Object {
	o, ok := v.Object()
	if !ok {
		p.addFault(v, "must be an object")
		return nil
	}
	for _, m := range o.Members {
		if len(known) > 0 && !slices.Contains(known, m.Name) {
			p.addFault(m, "is unknown: there is %s", strings.Join(known, ", "))
		}
	}
	return o
}

// readString reads a string, which may be empty, and replaces the variables in it.
func (p *parser) readString(v *strictjson.Value) (value string, ok bool) {
	raw, ok := v.Data.(string)
	if !ok {
		p.addFault(v, "must be a string")
		return "", false
	}
	value, problem := expandVariables(raw, p.lookUp)
	if problem != "" {
		p.addFault(v, "%s", problem)
	}
	return value, problem == ""
}

// readText reads a string that must not be empty. raw is the string before the replacement of variables.
func (p *parser) readText(v *strictjson.Value) (value, raw string, ok bool) {
	if v == nil {
		return "", "", false
	}
	if value, ok = p.readString(v); ok && value == "" {
		p.addFault(v, "is empty: leave it out")
	}
	if !ok || value == "" {
		return "", "", false
	}
	return value, v.Data.(string), true
}

// readTexts reads a list of strings, which may be empty.
func (p *parser) readTexts(v *strictjson.Value) []string {
	if v == nil {
		return nil
	}
	list, ok := v.Data.([]*strictjson.Value)
	if !ok || len(list) > maxList {
		p.addFault(v, "must be a list of at most %d strings", maxList)
		return nil
	}
	out := make([]string, len(list))
	for i, e := range list {
		out[i], _ = p.readString(e)
	}
	return out
}

// readPairs reads an object of strings, and calls each for its members in the order of the file.
func (p *parser) readPairs(v *strictjson.Value, each func(at *strictjson.Value, value string)) {
	if v == nil {
		return
	}
	o := p.readObject(v)
	if o != nil && len(o.Members) > maxList {
		p.addFault(v, "has more than %d entries", maxList)
	} else if o != nil {
		for _, m := range o.Members {
			if value, ok := p.readString(m); ok {
				each(m, value)
			}
		}
	}
}

// readServer reads one entry. It adds the errors to p.faults. It returns false if the entry is not an object.
func (p *parser) readServer(v *strictjson.Value) (Server, bool) {
	o := p.readObject(v, "transport", "url", "headers", "auth", "command", "args", "env", "workingDir", "enabled",
		"tools", "timeoutMs",
		"onUnknown")
	if o == nil {
		return Server{}, false
	}
	p.used = nil
	s := Server{Timeout: p.readTimeout(o.Get("timeoutMs")), Tools: p.readTools(o.Get("tools"))}
	if at := o.Get("enabled"); at != nil {
		enabled, ok := at.Data.(bool)
		if s.Policy.Enabled = &enabled; !ok {
			p.addFault(at, "must be true or false")
		}
	}
	if at := o.Get("onUnknown"); at != nil {
		v, _, ok := p.readText(at)
		if s.Policy.OnUnknown = v; ok && v != policy.OnUnknownResend && v != policy.OnUnknownHold {
			p.addFault(at, "must be %s or %s", policy.OnUnknownResend, policy.OnUnknownHold)
		}
	}
	p.readEndpoint(v, o, &s)
	return s, true
}

func (p *parser) readTimeout(v *strictjson.Value) time.Duration {
	if v == nil {
		return 0
	}
	number, ok := v.Data.(json.Number)
	ms, err := strconv.ParseInt(string(number), 10, 32)
	d := time.Duration(ms) * time.Millisecond
	if !ok || err != nil || d < minTimeout || d > maxTimeout {
		p.addFault(v, "must be a whole number of milliseconds, %d to %d", minTimeout.Milliseconds(),
			maxTimeout.Milliseconds())
	}
	return d
}

func (p *parser) readTools(v *strictjson.Value) []string {
	names := p.readTexts(v)
	if v != nil && names != nil && len(names) == 0 {
		p.addFault(v, "names no tool: leave it out to allow all, or set enabled to false")
	}
	for i, name := range names {
		if name == "" || len(name) > maxTool ||
			strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			p.addFault(v, "holds at [%d] no name of a tool (1 to %d characters)", i, maxTool)
		}
	}
	return names
}

// readEndpoint reads the address of the agent, if the entry contains one.
func (p *parser) readEndpoint(v *strictjson.Value, o *strictjson.Object, s *Server) {
	transport, _, named := p.readText(o.Get("transport"))
	switch {
	case o.Get("transport") != nil && !named: // readText has reported the error
		return
	case named:
	case o.Get("url") != nil:
		transport = mcpcall.TransportHTTP
	case o.Get("command") != nil:
		transport = mcpcall.TransportStdio
	default:
		p.refuseFields(o, "needs a url or a command in the same entry: "+
			"you have to name the credential's receiver, the chain must not",
			"headers", "auth", "args", "env", "workingDir")
		return
	}
	ep := &mcpcall.Endpoint{Transport: transport, Listed: true}
	switch transport {
	case mcpcall.TransportHTTP, mcpcall.TransportSSE:
		p.refuseFields(o, "is for transport stdio only", "command", "args", "env", "workingDir")
		p.readRemote(v, o, ep, s)
	case mcpcall.TransportStdio:
		p.refuseFields(o, "is for transports http and sse; a command takes its secrets from env", "url", "headers",
			"auth")
		p.readCommand(v, o, ep, s)
	default:
		p.addFault(o.Get("transport"), "must be http, sse or stdio")
		return
	}
	ep.Secrets = p.used
	s.endpoint = ep
}

// refuseFields reports fields that are not allowed with this transport.
func (p *parser) refuseFields(o *strictjson.Object, why string, names ...string) {
	for _, name := range names {
		if at := o.Get(name); at != nil {
			p.addFault(at, "%s", why)
		}
	}
}

// readRemote reads the fields of the transports http and sse.
func (p *parser) readRemote(v *strictjson.Value, o *strictjson.Object, ep *mcpcall.Endpoint, s *Server) {
	at := o.Get("url")
	if at == nil {
		p.addFault(v, "has no url, which transport %s needs", ep.Transport)
		return
	}
	value, raw, ok := p.readText(at)
	if u, err := url.Parse(value); ok {
		switch {
		case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
			p.addFault(at, "is not an http or https URL")
		case len(value) > maxURL:
			p.addFault(at, "is longer than %d bytes", maxURL)
		case u.User != nil:
			p.addFault(at, "must have no user and password: say them in auth or headers")
		case u.Fragment != "":
			p.addFault(at, "must have no fragment (#)")
		}
	}
	ep.URL, s.Display = value, withoutQuery(raw)
	p.readPairs(o.Get("headers"), func(at *strictjson.Value, value string) { p.addHeader(at, at.Name, value, ep) })
	p.readAuth(o.Get("auth"), ep)
}

// withoutQuery returns a URL as written in the file, with ${NAME}, but without its query and fragment.
func withoutQuery(raw string) string {
	if i := strings.IndexAny(raw, "?#"); i >= 0 {
		return raw[:i]
	}
	return raw
}

// addHeader adds a header to ep, or reports why it must not be set.
func (p *parser) addHeader(at *strictjson.Value, name, value string, ep *mcpcall.Endpoint) {
	canonical := http.CanonicalHeaderKey(name)
	switch _, twice := ep.Headers[canonical]; {
	case !httpguts.ValidHeaderFieldName(name) || len(name) > maxName:
		p.addFault(at, "is no name of an HTTP header")
	case mcpcall.CheckHeader(name) != nil:
		p.addFault(at, "sets the header %s, which belongs to HTTP or to the protocol", canonical)
	case !httpguts.ValidHeaderFieldValue(value):
		p.addFault(at, "has characters that an HTTP header must not have, perhaps a line feed at its end")
	case value == "":
		p.addFault(at, "is empty: leave it out")
	case twice:
		p.addFault(at, "sets the header %s a second time", canonical)
	default:
		if ep.Headers == nil {
			ep.Headers = map[string]secret.Secret{}
		}
		ep.Headers[canonical] = secret.New(value)
	}
}

// readAuth reads auth, which is a shorthand for one header. Other methods, such as OAuth, are not supported here.
func (p *parser) readAuth(v *strictjson.Value, ep *mcpcall.Endpoint) {
	if v == nil {
		return
	}
	o := p.readObject(v, "type", "token", "header")
	if o == nil {
		return
	}
	kind, _, ok := p.readText(o.Get("type"))
	if !ok {
		if o.Get("type") == nil {
			p.addFault(v, "has no type: bearer or header")
		}
		return
	}
	token, _, ok := p.readText(o.Get("token"))
	if o.Get("token") == nil {
		p.addFault(v, "has no token")
	}
	name := "Authorization"
	switch kind {
	case "bearer":
		p.refuseFields(o, "is for type header only; a bearer token goes into Authorization", "header")
		token = "Bearer " + token
	case "header":
		var named bool
		if name, _, named = p.readText(o.Get("header")); !named {
			if o.Get("header") == nil {
				p.addFault(v, "has no header: the name of the one that carries the token")
			}
			return
		}
	default:
		p.addFault(o.Get("type"), "must be bearer or header; this version knows no other way to authenticate")
		return
	}
	if ok {
		p.addHeader(v, name, token, ep)
	}
}

// readCommand reads the fields of the transport stdio.
func (p *parser) readCommand(v *strictjson.Value, o *strictjson.Object, ep *mcpcall.Endpoint, s *Server) {
	if o.Get("command") == nil {
		p.addFault(v, "has no command, which transport stdio needs")
		return
	}
	value, raw, _ := p.readText(o.Get("command"))
	ep.Command, s.Display = value, "stdio:"+raw
	ep.Args = p.readTexts(o.Get("args"))
	p.readPairs(o.Get("env"), func(at *strictjson.Value, value string) {
		if !isVariable(at.Name) {
			p.addFault(at, "is no name of an environment variable")
			return
		}
		ep.Env = append(ep.Env, at.Name+"="+value)
	})
	slices.Sort(ep.Env)
	if at := o.Get("workingDir"); at != nil {
		dir, _, ok := p.readText(at)
		if ep.Dir = dir; ok && !filepath.IsAbs(dir) {
			p.addFault(at, "must be an absolute path")
		}
	}
}
