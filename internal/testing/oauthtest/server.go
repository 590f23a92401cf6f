// Package oauthtest provides an authorization server and an MCP agent that it protects, for tests of code that obtains
// and sends tokens. The authorization server checks everything in a request: the client's authentication, the
// assertion, PKCE, the resource and the scope. The agent sends challenges as RFC 9728 defines them. Approve and Visit
// simulate a person's consent. Options make the servers deviate from the defaults or misbehave.
//
// The package does not use package oauth, because a shared mistake would go undetected. Both servers listen on
// loopback, over plain http.
package oauthtest

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	maxBody         = 1 << 20
	defaultLifetime = time.Hour
)

// The methods of client authentication.
const (
	MethodBasic = "client_secret_basic"
	MethodPost  = "client_secret_post"
	MethodKey   = "private_key_jwt"
	MethodNone  = "none"
)

// Options configures the authorization server and the agent. The zero value supports everything, requires no scope, and
// names the location of its metadata in the challenge.
type Options struct {
	// IssuerPath is the path of the issuer, such as "/tenant". Empty: the issuer is an origin.
	IssuerPath string
	// OpenID serves the server's metadata at the location of OpenID Connect Discovery, not at that of RFC 8414.
	OpenID bool
	// NoChallenge omits resource_metadata from the challenge. RootMetadata serves the resource's document at the root
	// instead of below the agent's path. Legacy simulates an agent of 2025-03-26: it has no such document, and its
	// origin is the authorization server. LegacyEndpoints implies Legacy and removes the metadata of the authorization
	// server too; only /authorize, /token and /register remain.
	NoChallenge, RootMetadata, Legacy, LegacyEndpoints bool

	// Scopes are listed in both documents; other scopes are refused. ChallengeScope is the scope in the agent's 401.
	Scopes         []string
	ChallengeScope string

	// Methods are the methods of client authentication that the server advertises and accepts. Nil: all four.
	Methods []string
	// NoRegistration removes the registration endpoint. NoIss omits iss from the callback and does not announce it.
	// ClientIDMetadata accepts a URL as client id.
	NoRegistration, NoIss, ClientIDMetadata bool

	// Lifetime of access tokens; zero means an hour.
	Lifetime time.Duration
	// RotateRefresh issues a new refresh token with every access token. Reusing an old one ends the whole grant.
	RotateRefresh bool
	// NoRevocation removes the revocation endpoint. RefreshOnly revokes refresh tokens, with all tokens derived from
	// them, but not access tokens.
	NoRevocation, RefreshOnly bool
	// NoRefresh issues no refresh tokens.
	NoRefresh bool
	// Prefix is prepended to every token, code and refresh token, so that tests can search for them.
	Prefix string
	// Path is the path of the agent; empty means "/mcp".
	Path string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Server consists of the authorization server and the agent. Its methods are safe for concurrent use.
type Server struct {
	// Issuer identifies the authorization server. AgentURL is the agent's endpoint and identifies the resource.
	Issuer, AgentURL string

	t     testing.TB
	o     Options
	auth  *httptest.Server // with Legacy the same server as agent
	agent *httptest.Server
	mcp   http.Handler

	mu       sync.Mutex
	answer   func(http.ResponseWriter, *http.Request) bool
	requests []Request
	calls    []Call
	clients  map[string]*client
	codes    map[string]*grant
	refresh  map[string]*grant
	tokens   []*token
	seen     map[string]bool // jti of the assertions received
	issuers  []string        // issuers that the agent names
}

// Request is a request that one of the servers received.
type Request struct {
	// Agent reports that the agent received it, not the authorization server. With Legacy, requests to other paths than
	// the agent's belong to the authorization server.
	Agent        bool
	Method, Path string
	Header       http.Header
	Form         url.Values // parameters of the query and of a form in the body
	Body         string
	Status       int // status of the authorization server's answer; 0 if there is none yet
}

// Call is a tools/call with a valid token.
type Call struct{ Token string }

// client is a registered OAuth client.
type client struct {
	secret    string
	key       crypto.PublicKey
	method    string   // the only method allowed; empty: any that fits
	redirects []string // nil: any address on loopback
}

// New starts both servers. They stop at the end of the test.
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
	s := &Server{t: t, o: o, clients: map[string]*client{}, codes: map[string]*grant{}, refresh: map[string]*grant{}, seen: map[string]bool{}}
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

// closeServer stops a server without waiting for streams that a client keeps open.
func closeServer(web *httptest.Server) {
	web.CloseClientConnections()
	web.Close()
}

// recordRequests records each request and passes it to the function set by Answer, or else to the server.
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
		number := len(s.requests)
		s.requests = append(s.requests, Request{Agent: toAgent, Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Form: form, Body: string(body)})
		answer := s.answer
		s.mu.Unlock()
		if answer != nil && answer(w, r) {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if toAgent || agent && strings.HasPrefix(r.URL.Path, resourceMetadata) {
			s.serveAgent(w, r)
			return
		}
		given := httptest.NewRecorder()
		s.serveAuthorization(given, r, form)
		s.mu.Lock()
		s.requests[number].Status = given.Code // before the client can receive it
		s.mu.Unlock()
		maps.Copy(w.Header(), given.Header())
		w.WriteHeader(given.Code)
		_, _ = given.Body.WriteTo(w)
	})
}

// Answer sets a function that both servers call first. It returns true if it has answered the request. It may read the
// body. ToAgent reports which server received the request. Nil removes the function.
func (s *Server) Answer(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// ToAgent reports whether the agent received a request that the function of Answer handles.
func (s *Server) ToAgent(r *http.Request) bool { return "http://"+r.Host == s.agent.URL }

// Requests returns all requests received, in order.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// TokenRequests returns the requests to the token endpoint.
func (s *Server) TokenRequests() []Request { return s.requestsTo(tokenPath) }

// Revocations returns the requests to the revocation endpoint.
func (s *Server) Revocations() []Request { return s.requestsTo(revokePath) }

func (s *Server) requestsTo(endpoint string) []Request {
	return slices.DeleteFunc(s.Requests(), func(r Request) bool { return r.Agent || r.Path != s.serverPath(endpoint) })
}

// Calls returns the tool calls with a valid token, in order.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Register adds a client with a secret, or a public client if secret is empty.
func (s *Server) Register(clientID, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[clientID] = &client{secret: secret}
}

// RegisterKey adds a client with a public key of type *ecdsa.PublicKey, *rsa.PublicKey or ed25519.PublicKey.
func (s *Server) RegisterKey(clientID string, key crypto.PublicKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[clientID] = &client{key: key}
}

// Unregister removes a client, whose requests then fail with invalid_client.
func (s *Server) Unregister(clientID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, clientID)
}

// NameIssuers sets the authorization servers that the agent names from now on.
func (s *Server) NameIssuers(issuers ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.issuers = issuers
}

// serverPath returns the path of an endpoint of the authorization server.
func (s *Server) serverPath(end string) string { return s.o.IssuerPath + end }

// randomText returns an unpredictable text.
func (s *Server) randomText(kind string) string { return s.o.Prefix + kind + rand.Text() }
