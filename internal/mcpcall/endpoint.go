package mcpcall

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/text"
)

// The transports that Endpoint.Transport may name.
const (
	TransportHTTP  = "http" // streamable HTTP, https included; an agent that only speaks the older HTTP+SSE is found out
	TransportSSE   = "sse"  // HTTP+SSE of revision 2024-11-05
	TransportStdio = "stdio"
)

// Endpoint is where an agent is called. Two endpoints with the same fields, ProtocolHint and Secrets aside, share one
// client.
type Endpoint struct {
	Transport string
	// URL of the agent's MCP endpoint, for http; of its event stream, for sse.
	URL string
	// Headers are secrets; they are sent to the origin of URL and nowhere else.
	Headers map[string]secret.Secret
	// Command and Args are for stdio and must be, together and exactly, an entry of Config.StdioCommands, unless the
	// endpoint is Listed.
	Command string
	Args    []string
	// Env ("NAME=value") is added to the clean environment of the command; Dir is its working directory. Both are the
	// operator's.
	Env []string
	Dir string
	// ProtocolHint is the newest protocol revision the agent is said to speak ("2025-11-25"), or what Answer.Protocol
	// told last time. It only decides what is tried first; empty means 2025-11-25.
	ProtocolHint string
	// Listed: the operator named this endpoint himself. Its command needs no entry in Config.StdioCommands, and its URL
	// may be plain http, on any port, and in a private network. Nothing that a stranger or an enqueuer wrote may set
	// it.
	Listed bool
	// Unsigned: requests are not signed though there is a Signer, because nothing that they say was verified.
	Unsigned bool
	// Secrets are texts within the other fields that are secret, as a token in an argument is: masked wherever the
	// agent echoes them. Not part of what makes a client.
	Secrets []secret.Secret
}

// refusedHeaders belong to HTTP, to the protocol, or to net/http (which sends a POST twice when it sees an idempotency
// key).
var refusedHeaders = map[string]bool{
	"Accept": true, "Connection": true, "Content-Encoding": true, "Content-Length": true, "Content-Type": true,
	"Expect": true,
	"Host":   true, "Idempotency-Key": true, "Keep-Alive": true, "Last-Event-Id": true, "Mcp-Method": true,
	"Mcp-Name":             true,
	"Mcp-Protocol-Version": true, "Mcp-Session-Id": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te":      true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "X-Idempotency-Key": true,
}

// checkFields refuses an endpoint of which no client can be made, whatever its address.
func (e Endpoint) checkFields(cfg *Config) error {
	refused := func(format string, args ...any) error {
		return &TransportRefusedError{Transport: e.Transport, Why: fmt.Sprintf(format, args...)}
	}
	switch e.Transport {
	case TransportHTTP, TransportSSE:
		u, err := url.Parse(e.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return refused("its address is no http or https URL")
		}
		for name, value := range e.Headers {
			if err := CheckHeader(name); err != nil {
				return refused("%v", err)
			}
			if !httpguts.ValidHeaderFieldValue(value.Reveal()) {
				return refused("header %q has a value that is not valid in HTTP", text.Excerpt(name, 60))
			}
		}
	case TransportStdio:
		argv := append([]string{e.Command}, e.Args...)
		if e.Command == "" {
			return refused("it names no command")
		}
		listed := slices.ContainsFunc(cfg.StdioCommands, func(c []string) bool { return slices.Equal(c, argv) })
		if !e.Listed && !listed {
			return refused("the command is not one that the operator listed; " +
				"to run it, add exactly it and its arguments to HERALD_STDIO_COMMANDS")
		}
		if len(e.Headers) > 0 {
			return refused("a command takes no headers")
		}
	default:
		return refused("only http, sse and stdio are called")
	}
	return nil
}

// CheckHeader refuses the name of a header that Endpoint.Headers may not have: its error is a sentence.
func CheckHeader(name string) error {
	if !isHeaderName(name) {
		return fmt.Errorf("header %q is not a valid HTTP header", text.Excerpt(name, 60))
	}
	if refusedHeaders[http.CanonicalHeaderKey(name)] {
		return fmt.Errorf("header %q belongs to the protocol and cannot be set", text.Excerpt(name, 60))
	}
	return nil
}

// isHeaderName: a name of bearable length.
func isHeaderName(s string) bool { return len(s) <= 128 && httpguts.ValidHeaderFieldName(s) }

// clientKey identifies the client that serves e. It is a hash, so that no credential becomes a map key that something
// might print.
func (e Endpoint) clientKey() [sha256.Size]byte {
	buf := make([]byte, 0, 256)
	add := func(s string) {
		buf = append(binary.BigEndian.AppendUint32(buf, uint32(len(s))), s...)
	}
	list := func(l []string) {
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(l)))
		for _, s := range l {
			add(s)
		}
	}
	add(e.Transport)
	add(strconv.FormatBool(e.Listed))
	add(strconv.FormatBool(e.Unsigned))
	add(e.URL)
	add(e.Command)
	add(e.Dir)
	list(e.Args)
	list(e.Env)
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		add(http.CanonicalHeaderKey(name))
		add(e.Headers[name].Reveal())
	}
	return sha256.Sum256(buf)
}

// newMasker masks what of e is secret wherever an agent echoes it; nil when nothing is. Of Basic credentials both
// halves are, as they are and encoded. more is masked too.
func (e Endpoint) newMasker(more ...string) *secret.Masker {
	texts, names := more, []string(nil)
	for _, value := range e.Headers {
		v := value.Reveal()
		texts = append(texts, v)
		if _, bare, ok := strings.Cut(v, " "); ok {
			texts = append(texts, bare)
		}
		basic := http.Request{Header: http.Header{"Authorization": {v}}}
		if user, password, ok := basic.BasicAuth(); ok {
			texts, names = append(texts, password), append(names, user)
		}
	}
	for _, kv := range e.Env {
		if _, v, ok := strings.Cut(kv, "="); ok {
			texts = append(texts, v)
		}
	}
	for _, s := range e.Secrets {
		texts = append(texts, s.Reveal())
	}
	if u, err := url.Parse(e.URL); err == nil {
		texts = append(texts, u.RawQuery)
	}
	return secret.NewMasker(texts, names...)
}
