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

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
)

// The values of Endpoint.Transport.
const (
	// TransportHTTP is streamable HTTP over http or https. A Pool falls back to HTTP+SSE if the agent supports only
	// that.
	TransportHTTP  = "http"
	TransportSSE   = "sse" // HTTP+SSE of revision 2024-11-05
	TransportStdio = "stdio"
)

// Endpoint describes how to reach an agent's MCP server, and with which credentials. Endpoints that differ only in
// ProtocolHint and Secrets use the same client.
type Endpoint struct {
	Transport string
	// URL is the URL of the agent's MCP endpoint for http, and of its event stream for sse.
	URL string
	// Headers are sent with each HTTP request, but only to the origin of URL. They are secret.
	Headers map[string]secret.Secret
	// Command and Args are for stdio. Together they must equal an entry of Config.StdioCommands, unless Listed is set.
	Command string
	Args    []string
	// Env ("NAME=value") is added to the clean environment of the command. Dir is the working directory of the command.
	// Both come from the operator.
	Env []string
	Dir string
	// ProtocolHint is the newest MCP revision that the agent claims to support ("2025-11-25"), or the Answer.Protocol
	// of an earlier call. It only determines which handshake is tried first. Empty means 2025-11-25.
	ProtocolHint string
	// Listed states that the operator configured this endpoint. Its command then needs no entry in
	// Config.StdioCommands, and its URL may have the scheme http, any port and a private address. The caller must not
	// set it for an endpoint that an agent or the sender of a job provided.
	Listed bool
	// Unsigned disables Config.Signer for this endpoint. Callers set it for requests whose content was not verified.
	Unsigned bool
	// Secrets are secret substrings of the other fields, such as a token in an argument. They are masked in data from
	// the agent.
	Secrets []secret.Secret
}

// refusedHeaders contains the headers that Endpoint.Headers must not contain: HTTP or MCP defines their values, or
// net/http repeats a POST because of them (the idempotency keys).
var refusedHeaders = map[string]bool{
	"Accept": true, "Connection": true, "Content-Encoding": true, "Content-Length": true, "Content-Type": true,
	"Expect": true,
	"Host":   true, "Idempotency-Key": true, "Keep-Alive": true, "Last-Event-Id": true, "Mcp-Method": true,
	"Mcp-Name":             true,
	"Mcp-Protocol-Version": true, "Mcp-Session-Id": true, "Proxy-Authorization": true, "Proxy-Connection": true,
	"Te":      true,
	"Trailer": true, "Transfer-Encoding": true, "Upgrade": true, "X-Idempotency-Key": true,
}

// checkFields returns a *TransportRefusedError if the fields of e are invalid or its command is not permitted. It does
// not check the IP address of e.URL.
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

// CheckHeader returns an error, a sentence for an operator, if Endpoint.Headers must not contain a header with this
// name.
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

// ClientKey identifies the client and the credential for e. It is a hash of all fields except ProtocolHint and Secrets,
// so that it does not reveal a credential.
func (e Endpoint) ClientKey() [sha256.Size]byte {
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

// newMasker returns a masker for the texts in more and for the secrets in e: header values, the values in Env, Secrets
// and the query of URL. It returns nil without any such text. Of Basic credentials it also masks the user name and the
// password.
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
