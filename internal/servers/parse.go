package servers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"golang.org/x/net/http/httpguts"
)

// Bounds of the file. An honest one is far below them.
const (
	maxFile    = 1 << 20 // bytes
	maxServers = 10000
	maxFaults  = 20 // that are told at once
	maxURL     = 4 << 10
	maxList    = 256 // args, env, headers, tools
	maxTool    = 128 // bytes (MCP SEP-986)
	minTimeout = time.Second
	maxTimeout = time.Hour
)

// File is one state of the file. It is never changed.
type File struct{ servers map[Key]Server }

// Lookup finds what the file says about an agent (decimal id).
func (f *File) Lookup(chainID uint64, agentID string) (Server, bool) {
	s, ok := f.servers[Key{chainID, agentID}]
	return s, ok
}

// Keys are the agents that the file names, in order.
func (f *File) Keys() []Key { return sorted(f.servers) }

// Load reads the file. env gives the values for ${NAME} (nil: os.LookupEnv); an empty one counts as not set. What is wrong with the file
// is told as *Error, several joined by errors.Join; one is enough for the file not to be used.
func Load(path string, env func(string) (string, bool)) (*File, error) {
	raw, err := read(path)
	if err != nil {
		return nil, err
	}
	return parse(path, raw, env)
}

// Find reads what the file says about one agent (decimal id); false: nothing. It fails like Load, but not for what is wrong within other
// agents' entries: these may name variables that only the worker has.
func Find(path string, env func(string) (string, bool), chainID uint64, agentID string) (Server, bool, error) {
	raw, err := read(path)
	if err != nil {
		return Server{}, false, err
	}
	key := Key{chainID, agentID}
	f, err := parseOnly(path, raw, env, func(k Key) bool { return k == key })
	if err != nil {
		return Server{}, false, err
	}
	s, ok := f.Lookup(chainID, agentID)
	return s, ok, nil
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, &Error{File: path, Problem: "cannot be read: " + reason(err)}
	case !info.Mode().IsRegular():
		return nil, &Error{File: path, Problem: "is no file"} // a pipe would be waited for
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, &Error{File: path, Problem: "cannot be read: " + reason(err)}
	}
	defer func() { _ = f.Close() }()
	switch info, err = f.Stat(); {
	case err != nil:
		return nil, &Error{File: path, Problem: "cannot be read: " + reason(err)}
	case info.Mode().Perm()&0o077 != 0: // as a keyset; who may write it decides which commands the worker runs
		return nil, &Error{File: path, Problem: fmt.Sprintf("is open to others than its owner (mode %#o), and it may hold secrets and names "+
			"commands: run chmod 600 on it", info.Mode().Perm())}
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, &Error{File: path, Problem: "cannot be read: " + reason(err)}
	case len(raw) > maxFile:
		return nil, &Error{File: path, Problem: fmt.Sprintf("is longer than %d bytes", maxFile)}
	}
	return raw, nil
}

// reason is a file error without the path, which the *Error names.
func reason(err error) string {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// parser gathers what is wrong, so that one look at the file tells it all.
type parser struct {
	file   string
	env    func(string) (string, bool)
	wanted func(Key) bool // nil: all
	faults []error
	full   bool            // maxFaults were found
	used   []secret.Secret // what was put in for ${NAME} in the server that is being read
}

// value looks a name up, and remembers what it stood for.
func (p *parser) value(name string) (string, bool) {
	v, ok := p.env(name)
	if ok && v != "" {
		p.used = append(p.used, secret.New(v))
	}
	return v, ok
}

func parse(file string, raw []byte, env func(string) (string, bool)) (*File, error) {
	return parseOnly(file, raw, env, nil)
}

// parseOnly does not look into the entries of agents that are not wanted; nil: all are.
func parseOnly(file string, raw []byte, env func(string) (string, bool), wanted func(Key) bool) (*File, error) {
	if env == nil {
		env = os.LookupEnv
	}
	root, err := readTree(file, raw)
	if err != nil {
		return nil, err
	}
	p := &parser{file: file, env: env, wanted: wanted}
	f := &File{servers: map[Key]Server{}}
	top := p.object(root, "servers")
	if top == nil {
		return nil, errors.Join(p.faults...)
	}
	list := top.fields["servers"]
	if list == nil {
		p.fault(root, `has no "servers": {"CHAIN:AGENT": {…}}`)
		return nil, errors.Join(p.faults...)
	}
	if all := p.object(list); all != nil {
		p.all(f, list, all)
	}
	if len(p.faults) > 0 {
		return nil, errors.Join(p.faults...)
	}
	return f, nil
}

func (p *parser) all(f *File, at *node, all *object) {
	if len(all.names) > maxServers {
		p.fault(at, "names more than %d servers", maxServers)
		return
	}
	for _, name := range all.names {
		n := all.fields[name]
		key, problem := parseKey(name)
		if p.wanted != nil && (problem != "" || !p.wanted(key)) {
			continue
		}
		if problem != "" {
			p.fault(n, "%s", problem)
		}
		if s, ok := p.server(n); ok {
			f.servers[key] = s
		}
	}
}

// parseKey reads CHAIN:AGENT.
func parseKey(s string) (k Key, problem string) {
	const form = "is not CHAIN:AGENT, as in 8453:42"
	chain, agent, ok := strings.Cut(s, ":")
	id, err := strconv.ParseUint(chain, 10, 63)
	switch {
	case !ok || err != nil || id == 0 || strconv.FormatUint(id, 10) != chain:
		return k, form
	case agent == "" || len(agent) > 78 || strings.Trim(agent, "0123456789") != "" || agent != "0" && agent[0] == '0':
		return k, form
	}
	if n, ok := new(big.Int).SetString(agent, 10); !ok || n.BitLen() > 256 {
		return k, "names an agent whose number is over 256 bits"
	}
	return Key{id, agent}, ""
}

func (p *parser) fault(at *node, format string, args ...any) {
	switch {
	case len(p.faults) < maxFaults:
		p.faults = append(p.faults, &Error{File: p.file, Line: at.line, Path: at.path, Problem: fmt.Sprintf(format, args...)})
	case !p.full:
		p.full = true
		p.faults = append(p.faults, &Error{File: p.file, Problem: "has more faults, which are not shown"})
	}
}

// object is n as one with no other fields than these; none: with any. nil when it is none.
func (p *parser) object(n *node, known ...string) *object {
	o, ok := n.value.(*object)
	if !ok {
		p.fault(n, "must be an object")
		return nil
	}
	for _, name := range o.names {
		if len(known) > 0 && !slices.Contains(known, name) {
			p.fault(o.fields[name], "is unknown: there is %s", strings.Join(known, ", "))
		}
	}
	return o
}

// text is a string with what it names put in; raw is as it is written.
func (p *parser) text(n *node) (value, raw string, ok bool) {
	if n == nil {
		return "", "", false
	}
	raw, isString := n.value.(string)
	if !isString {
		p.fault(n, "must be a string")
		return "", "", false
	}
	value, problem := expand(raw, p.value)
	switch {
	case problem != "":
		p.fault(n, "%s", problem)
	case value == "":
		p.fault(n, "is empty: leave it out")
	default:
		return value, raw, true
	}
	return "", "", false
}

// texts is a list of strings; they may be empty.
func (p *parser) texts(n *node) []string {
	if n == nil {
		return nil
	}
	list, ok := n.value.([]*node)
	if !ok || len(list) > maxList {
		p.fault(n, "must be a list of at most %d strings", maxList)
		return nil
	}
	out := make([]string, 0, len(list))
	for _, e := range list {
		raw, ok := e.value.(string)
		v, problem := expand(raw, p.value)
		if !ok {
			problem = "must be a string"
		}
		if problem != "" {
			p.fault(e, "%s", problem)
		}
		out = append(out, v)
	}
	return out
}

// pairs is an object of strings. Its order is that of the file.
func (p *parser) pairs(n *node, each func(at *node, name, value string)) {
	if n == nil {
		return
	}
	o := p.object(n)
	if o == nil {
		return
	}
	if len(o.names) > maxList {
		p.fault(n, "has more than %d entries", maxList)
		return
	}
	for _, name := range o.names {
		at := o.fields[name]
		raw, ok := at.value.(string)
		value, problem := expand(raw, p.value)
		if !ok {
			problem = "must be a string"
		}
		if problem != "" {
			p.fault(at, "%s", problem)
			continue
		}
		each(at, name, value)
	}
}

var fieldsOfServer = []string{"transport", "url", "headers", "auth", "command", "args", "env", "workingDir", "enabled", "tools", "timeoutMs", "onUnknown"}

// server reads one entry; false when it is no object. What is wrong with it is in p.faults.
func (p *parser) server(n *node) (Server, bool) {
	o := p.object(n, fieldsOfServer...)
	if o == nil {
		return Server{}, false
	}
	p.used = nil
	s := Server{Enabled: p.bool(o.fields["enabled"], true), Timeout: p.timeout(o.fields["timeoutMs"]), Tools: p.tools(o.fields["tools"])}
	if at := o.fields["onUnknown"]; at != nil {
		v, _, ok := p.text(at)
		if s.OnUnknown = v; ok && v != store.OnUnknownResend && v != store.OnUnknownHold {
			p.fault(at, "must be %s or %s", store.OnUnknownResend, store.OnUnknownHold)
		}
	}
	p.endpoint(n, o, &s)
	return s, true
}

func (p *parser) bool(n *node, fallback bool) bool {
	if n == nil {
		return fallback
	}
	v, ok := n.value.(bool)
	if !ok {
		p.fault(n, "must be true or false")
	}
	return v
}

func (p *parser) timeout(n *node) time.Duration {
	if n == nil {
		return 0
	}
	number, ok := n.value.(json.Number)
	ms, err := strconv.ParseInt(string(number), 10, 32)
	d := time.Duration(ms) * time.Millisecond
	if !ok || err != nil || d < minTimeout || d > maxTimeout {
		p.fault(n, "must be a whole number of milliseconds, %d to %d", minTimeout.Milliseconds(), maxTimeout.Milliseconds())
	}
	return d
}

func (p *parser) tools(n *node) []string {
	names := p.texts(n)
	if n != nil && names != nil && len(names) == 0 {
		p.fault(n, "names no tool: leave it out to allow all, or set enabled to false")
	}
	for i, name := range names {
		if name == "" || len(name) > maxTool || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			p.fault(n, "holds at [%d] no name of a tool (1 to %d characters)", i, maxTool)
		}
	}
	return names
}

// endpoint reads where the agent is called, if the entry says so.
func (p *parser) endpoint(n *node, o *object, s *Server) {
	transport, _, named := p.text(o.fields["transport"])
	switch {
	case o.fields["transport"] != nil && !named: // told already
		return
	case named:
	case o.fields["url"] != nil:
		transport = mcpcall.TransportHTTP
	case o.fields["command"] != nil:
		transport = mcpcall.TransportStdio
	default:
		p.without(o, "needs a url or a command beside it: what is sent, and to whom, is for you to name, not for the chain",
			"headers", "auth", "args", "env", "workingDir")
		return
	}
	ep := &mcpcall.Endpoint{Transport: transport, Listed: true}
	switch transport {
	case mcpcall.TransportHTTP, mcpcall.TransportSSE:
		p.without(o, "is for transport stdio only", "command", "args", "env", "workingDir")
		p.remote(n, o, ep, s)
	case mcpcall.TransportStdio:
		p.without(o, "is for transports http and sse; a command takes its secrets from env", "url", "headers", "auth")
		p.command(n, o, ep, s)
	default:
		p.fault(o.fields["transport"], "must be http, sse or stdio")
		return
	}
	ep.Secrets = p.used
	s.endpoint = ep
}

// without refuses fields that mean nothing here.
func (p *parser) without(o *object, why string, names ...string) {
	for _, name := range names {
		if at := o.fields[name]; at != nil {
			p.fault(at, "%s", why)
		}
	}
}

func (p *parser) remote(n *node, o *object, ep *mcpcall.Endpoint, s *Server) {
	at := o.fields["url"]
	if at == nil {
		p.fault(n, "has no url, which transport %s needs", ep.Transport)
		return
	}
	value, raw, ok := p.text(at)
	if u, err := url.Parse(value); ok {
		switch {
		case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
			p.fault(at, "is not an http or https URL")
		case len(value) > maxURL:
			p.fault(at, "is longer than %d bytes", maxURL)
		case u.User != nil:
			p.fault(at, "must have no user and password: say them in auth or headers")
		case u.Fragment != "":
			p.fault(at, "must have no fragment (#)")
		}
	}
	ep.URL, s.Display = value, withoutQuery(raw)
	p.headers(o.fields["headers"], ep)
	p.auth(o.fields["auth"], ep)
}

// withoutQuery is a URL as it is written in the file, ${NAME} and all.
func withoutQuery(raw string) string {
	if i := strings.IndexAny(raw, "?#"); i >= 0 {
		return raw[:i]
	}
	return raw
}

func (p *parser) headers(n *node, ep *mcpcall.Endpoint) {
	p.pairs(n, func(at *node, name, value string) { p.header(at, name, value, ep) })
}

func (p *parser) header(at *node, name, value string, ep *mcpcall.Endpoint) {
	canonical := http.CanonicalHeaderKey(name)
	switch _, twice := ep.Headers[canonical]; {
	case !httpguts.ValidHeaderFieldName(name) || len(name) > maxShownName:
		p.fault(at, "is no name of an HTTP header")
	case mcpcall.CheckHeader(name) != nil:
		p.fault(at, "sets the header %s, which belongs to HTTP or to the protocol", canonical)
	case !httpguts.ValidHeaderFieldValue(value):
		p.fault(at, "holds what no HTTP header can, perhaps a line feed at its end")
	case value == "":
		p.fault(at, "is empty: leave it out")
	case twice:
		p.fault(at, "sets the header %s a second time", canonical)
	default:
		if ep.Headers == nil {
			ep.Headers = map[string]secret.Secret{}
		}
		ep.Headers[canonical] = secret.New(value)
	}
}

// auth is a header in other words. What needs more than that (OAuth) is not here yet.
func (p *parser) auth(n *node, ep *mcpcall.Endpoint) {
	if n == nil {
		return
	}
	o := p.object(n, "type", "token", "header")
	if o == nil {
		return
	}
	kind, _, ok := p.text(o.fields["type"])
	if !ok {
		if o.fields["type"] == nil {
			p.fault(n, "has no type: bearer or header")
		}
		return
	}
	token, _, ok := p.text(o.fields["token"])
	if o.fields["token"] == nil {
		p.fault(n, "has no token")
	}
	name := "Authorization"
	switch kind {
	case "bearer":
		p.without(o, "is for type header only; a bearer token goes into Authorization", "header")
		token = "Bearer " + token
	case "header":
		var named bool
		if name, _, named = p.text(o.fields["header"]); !named {
			if o.fields["header"] == nil {
				p.fault(n, "has no header: the name of the one that carries the token")
			}
			return
		}
	default:
		p.fault(o.fields["type"], "must be bearer or header; this version knows no other way to authenticate")
		return
	}
	if ok {
		p.header(n, name, token, ep)
	}
}

func (p *parser) command(n *node, o *object, ep *mcpcall.Endpoint, s *Server) {
	if o.fields["command"] == nil {
		p.fault(n, "has no command, which transport stdio needs")
		return
	}
	value, raw, _ := p.text(o.fields["command"])
	ep.Command, s.Display = value, "stdio:"+raw
	ep.Args = p.texts(o.fields["args"])
	p.pairs(o.fields["env"], func(at *node, name, value string) {
		if !variable(name) {
			p.fault(at, "is no name of an environment variable")
			return
		}
		ep.Env = append(ep.Env, name+"="+value)
	})
	slices.Sort(ep.Env)
	if at := o.fields["workingDir"]; at != nil {
		dir, _, ok := p.text(at)
		if ep.Dir = dir; ok && !filepath.IsAbs(dir) {
			p.fault(at, "must be an absolute path")
		}
	}
}
