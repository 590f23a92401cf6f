package mcpcall

import (
	"bufio"
	"bytes"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/signingtest"
	"github.com/agentherald/herald/receiver/callers"
)

// newSigner returns the keys of a Herald, and the address at which they are published.
func newSigner(t testing.TB) (*signing.Ring, string) {
	t.Helper()
	keyset, err := secret.Create()
	heraldtest.Must(t, err)
	var ring *signing.Ring
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { ring.ServeHTTP(w, r) }))
	t.Cleanup(srv.Close)
	ring, err = signing.New(signing.Config{PublicURL: srv.URL, Records: &signingtest.Shelf{}, Keys: keyset})
	heraldtest.Must(t, err)
	heraldtest.Must(t, ring.Load(t.Context()))
	return ring, srv.URL
}

// guarded is an agent that accepts calls of one Herald only, and records requests.
type guarded struct {
	mu       sync.Mutex
	verifier *callers.Verifier
	taken    map[string]int // accepted requests by HTTP method
	refused  []string
}

// guard runs agent so that it accepts calls of herald only.
func guard(t testing.TB, herald string, agent http.Handler) (*httptest.Server, *guarded) {
	t.Helper()
	g := &guarded{taken: map[string]int{}}
	srv := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		err := g.verifier.Check(r)
		if err == nil {
			g.taken[r.Method]++
		} else {
			g.refused = append(g.refused, r.Method+" "+err.Error())
		}
		g.mu.Unlock()
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		agent.ServeHTTP(w, r)
	}))
	var err error
	g.verifier, err = callers.New(callers.Config{Herald: herald, Self: srv.URL})
	heraldtest.Must(t, err)
	return srv, g
}

// inRevision replaces the protocol version that Herald requests by an older one.
func inRevision(version string, next http.Handler) http.Handler {
	return reading(next, func(_ *http.Request, body []byte) []byte {
		if bytes.Contains(body, []byte(`"initialize"`)) {
			body = bytes.ReplaceAll(body, []byte(legacyVersion), []byte(version))
		}
		return body
	})
}

// TestSigned calls an agent that refuses unsigned requests, in every revision and over every transport. Each request is
// signed anew: handshake, list, calls, notifications, streams and the end of the session.
func TestSigned(t *testing.T) {
	t.Parallel()
	stateful := server.NewStreamableHTTPServer(realTools(), server.WithStateful(true))
	var resumedID atomic.Value
	resumed := &agent{session: "s", on: answers{
		"tools/call": func(q *request) { // the answer's stream breaks off and is resumed
			q.events("id: 1\nretry: 10\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n")
			resumedID.Store(string(q.id))
		},
		http.MethodGet: func(q *request) {
			q.events("id: 2\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", resumedID.Load())
		}}}
	for name, tt := range map[string]struct {
		agent    http.Handler
		endpoint Endpoint
		protocol string
		methods  []string
	}{
		"2025-03-26": {inRevision("2025-03-26", stateful), Endpoint{Transport: TransportHTTP}, "2025-03-26", []string{"DELETE", "POST"}},
		"2025-06-18": {inRevision("2025-06-18", stateful), Endpoint{Transport: TransportHTTP}, "2025-06-18", []string{"DELETE", "POST"}},
		"2025-11-25": {stateful, Endpoint{Transport: TransportHTTP}, legacyVersion, []string{"DELETE", "POST"}},
		"2026-07-28": {server.NewStreamableHTTPServer(realTools()), Endpoint{Transport: TransportHTTP, ProtocolHint: modernVersion},
			modernVersion, []string{"POST"}},
		"HTTP+SSE, 2024-11-05": {inRevision("2024-11-05", server.NewSSEServer(realTools())), Endpoint{Transport: TransportSSE}, "2024-11-05",
			[]string{"GET", "POST"}},
		"an answer resumed": {resumed, Endpoint{Transport: TransportHTTP}, "", []string{"DELETE", "GET", "POST"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ring, herald := newSigner(t)
			srv, g := guard(t, herald, tt.agent)
			ep := tt.endpoint
			ep.URL = srv.URL + "/sse?place=a%2Fb"
			ep.Headers = map[string]secret.Secret{"X-Key": secret.New("hunter2")}
			ctx := heraldtest.Within(t, 30*time.Second)
			p := newPool(t, func(c *Config) { c.Signer = ring })
			for range 3 {
				answer, err := p.Call(ctx, ep, Request{Tool: feedbackTool, Arguments: map[string]any{"value": "9"}, Meta: map[string]any{"io.agentherald/delivery": map[string]any{"id": "1"}}})
				if err != nil || answer.IsError || tt.protocol != "" && answer.Protocol != tt.protocol {
					t.Fatalf("%+v, %v; refused %q", answer, err, g.refused)
				}
			}
			heraldtest.Must(t, p.Close(ctx))
			heraldtest.AwaitState(t, func() bool {
				g.mu.Lock()
				defer g.mu.Unlock()
				return slices.Equal(slices.Sorted(maps.Keys(g.taken)), tt.methods)
			}, func() string { return "the methods seen" })
			g.mu.Lock()
			defer g.mu.Unlock()
			if len(g.refused) > 0 {
				t.Errorf("refused: %q", g.refused)
			}
		})
	}
}

// TestUnsignedEndpoint checks that requests to an endpoint with Unsigned are not signed and do not share a client with
// signed ones. The agent, which verifies signatures, refuses all of them.
func TestUnsignedEndpoint(t *testing.T) {
	t.Parallel()
	ring, herald := newSigner(t)
	srv, g := guard(t, herald, server.NewStreamableHTTPServer(realTools(), server.WithStateful(true)))
	p := newPool(t, func(c *Config) { c.Signer = ring })
	ctx := heraldtest.Within(t, 30*time.Second)
	signed := Endpoint{Transport: TransportHTTP, URL: srv.URL}
	unsigned := signed
	unsigned.Unsigned = true
	request := Request{Tool: feedbackTool, Arguments: map[string]any{"value": "9"}, Meta: map[string]any{"x": 1}}
	for range 2 {
		mustCall(t, p, signed, request)
		_, err := p.Call(ctx, unsigned, request)
		expectFailure(t, "an unsigned call", err, CallError{Stage: StageOpen, Status: http.StatusUnauthorized})
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.refused) == 0 {
		t.Error("the agent refused nothing")
	}
}

// noKey is a signer without a key.
type noKey struct{}

func (noKey) Sign(*http.Request) error { return signing.ErrNoKey }

// TestUnsignedIsNotSent checks that a request that cannot be signed is not sent. An agent that verifies signatures
// would refuse it, and the delivery would be held for a credential.
func TestUnsignedIsNotSent(t *testing.T) {
	t.Parallel()
	a := &agent{}
	ctx, p, ep := dial(t, a, func(c *Config) { c.Signer = noKey{} })
	_, err := p.Call(ctx, ep, Request{Tool: "x"})
	expectFailure(t, "without a key", err, CallError{Stage: StageOpen}, "signing-key rotate")
	if n := a.seen("initialize"); n > 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestSignatureStays checks that a signature is not sent to the target of a redirect and does not appear in logs or
// errors.
func TestSignatureStays(t *testing.T) {
	t.Parallel()
	ring, _ := newSigner(t)
	var elsewhere http.Header
	other := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { elsewhere = r.Header }))
	srv := serve(t, http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	var said heraldtest.Log
	p := newPool(t, func(c *Config) { c.Signer, c.Logger = ring, said.Logger(slog.LevelDebug) })
	_, err := p.Call(heraldtest.Within(t, 30*time.Second), Endpoint{Transport: TransportHTTP, URL: srv.URL}, Request{Tool: "x"})
	if err == nil || elsewhere != nil {
		t.Errorf("%v, %v", err, elsewhere)
	}
	heraldtest.Lacks(t, "told", said.String()+err.Error(), "sig1=")
}

// callSignedExampleAgent checks that the agent, with -herald, accepts calls of that Herald only.
func callSignedExampleAgent(t *testing.T, binary string) {
	ring, herald := newSigner(t)
	own := "http://" + heraldtest.Address(t)
	web := exec.CommandContext(heraldtest.Within(t, time.Minute), binary, "-http", strings.TrimPrefix(own, "http://"), "-herald", herald, "-self", own)
	stderr, err := web.StderrPipe()
	heraldtest.Must(t, err)
	heraldtest.Must(t, web.Start())
	defer func() { _, _ = web.Process.Kill(), web.Wait() }()
	if line, err := bufio.NewReader(stderr).ReadString('\n'); err != nil || !strings.HasPrefix(line, "listening on "+own) {
		t.Fatal(line, err)
	}
	ep := Endpoint{Transport: TransportHTTP, URL: own + "/mcp"}
	ctx := heraldtest.Within(t, 30*time.Second)
	call := Request{Tool: feedbackTool, Arguments: sampleFeedback("5b0e1c1e-9dad-41d1-80b4-00c04fd430c8")}
	if a, err := newPool(t, func(c *Config) { c.Signer = ring }).Call(ctx, ep, call); err != nil || a.IsError {
		t.Errorf("%+v, %v", a, err)
	}
	_, err = newPool(t).Call(ctx, ep, call)
	expectFailure(t, "unsigned", err, CallError{Stage: StageOpen, Status: http.StatusUnauthorized})
}
