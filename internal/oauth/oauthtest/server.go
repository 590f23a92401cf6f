// Package oauthtest is an authorization server and an MCP agent that it protects, for tests of whatever gets a token
// and sends it: an authorization server that checks all it is told (the client's authentication, the assertion, PKCE,
// the resource, the scope), an agent that challenges as RFC 9728 has it, a person who clicks, and knobs that make
// both misbehave.
//
// It knows nothing of package oauth: what both would get wrong alike, neither would find. Everything is on loopback,
// over plain http.
package oauthtest

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/server"
)

const (
	maxBody         = 1 << 20
	defaultLifetime = time.Hour
)

// Methods of client authentication.
const (
	MethodBasic = "client_secret_basic"
	MethodPost  = "client_secret_post"
	MethodKey   = "private_key_jwt"
	MethodNone  = "none"
)

// Options is what kind of authorization server and agent they are. The zero value: one that does everything, asks for
// no scope and says where its metadata is in the challenge.
type Options struct {
	// IssuerPath is the issuer's path, such as "/tenant". Empty: the issuer is an origin.
	IssuerPath string
	// OpenID serves the server's metadata as OpenID Connect Discovery has it, and not as RFC 8414.
	OpenID bool
	// NoChallenge leaves resource_metadata out of the challenge; RootMetadata serves that document at the root
	// instead of below the agent's path. Legacy is an agent of 2025-03-26: no such document, and its own origin is
	// the authorization server; with LegacyEndpoints that one has no metadata either, but /authorize, /token and
	// /register.
	NoChallenge, RootMetadata, Legacy, LegacyEndpoints bool

	// Scopes are named in both documents; others are refused. Require is what the agent wants a token to have, and
	// ChallengeScope what it names in its 401 (Server.Require sets both later).
	Scopes         []string
	Require        []string
	ChallengeScope string

	// Methods are the ways of client authentication that are named in the metadata and taken. Nil: all four.
	Methods []string
	// NoRegistration has no registration endpoint, NoIss sends no iss with the answer (and does not say that
	// it would), ClientIDMetadata takes a URL as a client's id.
	NoRegistration, NoIss, ClientIDMetadata bool

	// Lifetime of access tokens; zero is an hour. Negative: the answer does not say.
	Lifetime time.Duration
	// RotateRefresh gives a new refresh token with every access token; the old one, used again, ends the whole grant.
	RotateRefresh bool
	// NoRevocation has no revocation endpoint; RefreshOnly revokes refresh tokens, with what came of them, and no
	// access tokens.
	NoRevocation, RefreshOnly bool
	// NoRefresh gives no refresh tokens.
	NoRefresh bool
	// Prefix begins every token, code and refresh token that is issued: something to search for.
	Prefix string
	// Path of the agent; empty is "/mcp".
	Path string
	// Now is the clock. Nil: time.Now.
	Now func() time.Time
}

// Server is both servers. Its methods are safe for concurrent use.
type Server struct {
	// Issuer is the authorization server's identifier, AgentURL the agent's endpoint and the resource's identifier.
	Issuer, AgentURL string

	t       testing.TB
	o       Options
	auth    *httptest.Server // with Legacy the agent's
	agent   *httptest.Server
	mcp     http.Handler
	mcpTool *server.MCPServer

	mu       sync.Mutex
	answer   func(http.ResponseWriter, *http.Request) bool
	requests []recordedRequest
	calls    []Call
	clients  map[string]*client
	codes    map[string]*grant
	refresh  map[string]*grant
	tokens   []*token
	seen     map[string]bool // jti of assertions
	lifetime time.Duration
	require  []string
	scope    string   // in the challenge
	issuers  []string // that the agent names
}

// Request is one request that came to either server.
type Request struct {
	Agent        bool // it came to the agent, not to the authorization server (with Legacy: not to that one's paths)
	Method, Path string
	Header       http.Header
	Form         url.Values // of the query and of a form in the body
	Body         string
	Status       int // of the answer; zero: none yet
}

// recordedRequest is a request whose answer may still be written.
type recordedRequest struct {
	Request
	status *atomic.Int32
}

// Call is a tools/call that came with a token that is valid.
type Call struct {
	Tool      string
	Arguments map[string]any
	Token     string
}

type client struct {
	secret    string
	key       crypto.PublicKey
	method    string   // the only one; empty: any that fits
	redirects []string // nil: any on loopback
}

// New starts both. They end with the test.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Path == "" {
		o.Path = "/mcp"
	}
	if o.Lifetime == 0 {
		o.Lifetime = defaultLifetime
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Methods == nil {
		o.Methods = []string{MethodBasic, MethodPost, MethodKey, MethodNone}
	}
	o.Legacy = o.Legacy || o.LegacyEndpoints
	s := &Server{t: t, o: o, clients: map[string]*client{}, codes: map[string]*grant{}, refresh: map[string]*grant{}, seen: map[string]bool{},
		lifetime: o.Lifetime, require: o.Require, scope: o.ChallengeScope}
	s.newAgent()
	s.agent = httptest.NewServer(s.recordRequests(true))
	s.auth = s.agent
	if !o.Legacy {
		s.auth = httptest.NewServer(s.recordRequests(false))
		t.Cleanup(func() { closeServer(s.auth) })
	}
	t.Cleanup(func() { closeServer(s.agent) })
	s.Issuer, s.AgentURL = s.auth.URL+o.IssuerPath, s.agent.URL+o.Path
	s.issuers = []string{s.Issuer}
	return s
}

// closeServer does not wait for streams that a client keeps open.
func closeServer(web *httptest.Server) {
	web.CloseClientConnections()
	web.Close()
}

// recordRequests asks Answer, then the server, and notes both.
func (s *Server) recordRequests(agent bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
		if err != nil {
			http.Error(w, "the body broke off", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		form := r.URL.Query()
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded") {
			if more, err := url.ParseQuery(string(body)); err == nil {
				for name, values := range more {
					form[name] = append(form[name], values...)
				}
			}
		}
		toAgent := agent && (!s.o.Legacy || r.URL.Path == s.o.Path)
		s.mu.Lock()
		noted := &statusRecorder{ResponseWriter: w, status: new(atomic.Int32)}
		s.requests = append(s.requests, recordedRequest{status: noted.status,
			Request: Request{Agent: toAgent, Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Form: form, Body: string(body)}})
		answer := s.answer
		s.mu.Unlock()
		if answer != nil && answer(noted, r) {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch {
		case toAgent || agent && strings.HasPrefix(r.URL.Path, resourceMetadata):
			s.serveAgent(noted, r)
		default:
			s.serveAuthorization(noted, r, form)
		}
	})
}

// statusRecorder remembers the status, before whoever asked can have it.
type statusRecorder struct {
	http.ResponseWriter
	status *atomic.Int32
}

// WriteHeader is http.ResponseWriter's.
func (n *statusRecorder) WriteHeader(status int) {
	n.status.Store(int32(status))
	n.ResponseWriter.WriteHeader(status)
}

// Write is http.ResponseWriter's.
func (n *statusRecorder) Write(b []byte) (int, error) {
	n.status.CompareAndSwap(0, http.StatusOK)
	return n.ResponseWriter.Write(b)
}

// Flush is asked for by streams.
func (n *statusRecorder) Flush() { _ = http.NewResponseController(n.ResponseWriter).Flush() }

// Unwrap is for http.ResponseController.
func (n *statusRecorder) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// Answer is asked before everything else, by both servers; it returns true when it has answered. It may read the
// body. ToAgent tells which server is asked. Nil ends it.
func (s *Server) Answer(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// ToAgent tells whether a request that Answer sees came to the agent.
func (s *Server) ToAgent(r *http.Request) bool { return "http://"+r.Host == s.agent.URL }

// Requests are all that came, in order.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Request, 0, len(s.requests))
	for _, r := range s.requests {
		r.Status = int(r.status.Load())
		out = append(out, r.Request)
	}
	return out
}

// TokenRequests are those to the token endpoint.
func (s *Server) TokenRequests() []Request { return s.requestsTo(tokenPath) }

// Revocations are the requests to the revocation endpoint.
func (s *Server) Revocations() []Request { return s.requestsTo(revokePath) }

func (s *Server) requestsTo(endpoint string) []Request {
	return slices.DeleteFunc(s.Requests(), func(r Request) bool { return r.Agent || r.Path != s.serverPath(endpoint) })
}

// Calls are the tool calls that came with a valid token, in order.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Register makes a client known by a secret; without one, a public client.
func (s *Server) Register(clientID, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[clientID] = &client{secret: secret}
}

// RegisterKey makes a client known by its public key: *ecdsa.PublicKey, *rsa.PublicKey or ed25519.PublicKey.
func (s *Server) RegisterKey(clientID string, key crypto.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[clientID] = &client{key: key}
}

// Unregister forgets a client: invalid_client from then on.
func (s *Server) Unregister(clientID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, clientID)
}

// ExpireIn is how long access tokens live that are issued from now on. Negative: the answer does not say, and they
// live an hour.
func (s *Server) ExpireIn(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lifetime = d
}

// Require is what the agent wants a token's scope to have from now on. Less is answered 403 insufficient_scope,
// naming these.
func (s *Server) Require(scopes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.require, s.scope = scopes, strings.Join(scopes, " ")
}

// NameIssuers is what the agent says its authorization servers are from now on.
func (s *Server) NameIssuers(issuers ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.issuers = issuers
}

// serverPath is where something of the authorization server is.
func (s *Server) serverPath(end string) string { return s.o.IssuerPath + end }

// randomText is something nobody guesses.
func (s *Server) randomText(kind string) string { return s.o.Prefix + kind + rand.Text() }
