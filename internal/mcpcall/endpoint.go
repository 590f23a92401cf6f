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

// The values of Endpoint.Transport.
const (
	// TransportHTTP is streamable HTTP over http or https. A Pool falls back to HTTP+SSE if the agent supports only
	// that.
	TransportHTTP  = "http"
	TransportSSE   = "sse" // HTTP+SSE of revision 2024-11-05
	TransportStdio = "stdio"
)

// Endpoint is the address of an agent and the way to call it. Endpoints that differ only in ProtocolHint and Secrets
// share one client.
type Endpoint struct {
	Transport string
	// URL is the agent's MCP endpoint for http, and its event stream for sse.
	URL string
	// Headers are secret. They are sent only to the origin of URL.
	Headers map[string]secret.Secret
	// Command and Args are for stdio. Together they must equal an entry of Config.StdioCommands, unless the endpoint is
	// Listed.
	Command string
	Args    []string
	// Env ("NAME=value") is added to the clean environment of the command. Dir is the working directory of the command.
	// Both come from the operator.
	Env []string
	Dir string
	// ProtocolHint is the newest protocol revision that the agent claims to speak ("2025-11-25"), or the
	// Answer.Protocol of an earlier call. It only determines which handshake is tried first. Empty means 2025-11-25.
	ProtocolHint string
	// Listed reports that the operator configured this endpoint. Its command needs no entry in Config.StdioCommands.
	// Its URL may use plain http, any port and a private network. Data from an agent or an enqueuer must never set it.
	Listed bool
	// Unsigned disables signing even if there is a Signer, because the content of the requests was not verified.
	Unsigned bool
	// Secrets are secret substrings of the other fields, such as a token in an argument. They are masked wherever the
	// agent echoes them. They do not affect which endpoints share a client.
	Secrets []secret.Secret
}

// refusedHeaders lists headers that HTTP, MCP or net/http reserves. (net/http repeats a POST that has an idempotency
// key.)
var refusedHeaders = map[string]bool{
	"Accept": true, "Connection": true, "Content-Encoding": true, "Content-Length": true, "Content-Type": true,
	"Expect": true,
	"Host":   true, "Idempotency-Key": true, "Keep-Alive": true, "Last-Event-Id": true, "Mcp-Method": true,
	"Mcp-Name":             true,
	"Mcp-Protocol-Version": true, "Mcp-Session-Id": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te":      true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "X-Idempotency-Key": true,
}

// checkFields returns an error if no client can be made for e. It does not check the address that e points to.
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

// CheckHeader returns an error if Endpoint.Headers must not contain the header name. The error is a sentence for an
// operator.
func CheckHeader(name string) error {
	if !isHeaderName(name) {
		return fmt.Errorf("header %q is not a valid HTTP header", text.Excerpt(name, 60))
	}
	if refusedHeaders[http.CanonicalHeaderKey(name)] {
		return fmt.Errorf("header %q belongs to the protocol and cannot be set", text.Excerpt(name, 60))
	}
	return nil
}

// isHeaderName reports whether s is a valid header name of at most 128 bytes.
func isHeaderName(s string) bool { return len(s) <= 128 && httpguts.ValidHeaderFieldName(s) }

// clientKey identifies the client that serves e. It is a hash, so that logging a map key cannot reveal a credential.
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

// newMasker returns a masker for the secrets of e and for more, or nil if e and more contain no secret. For Basic
// credentials it masks the user name and the password, each in plain and in encoded form.
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
