package delivery

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/agentauth"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/netguard/guardtest"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/oauth/oauthtest"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// authorizing returns a worker that obtains access tokens.
func (w *world) authorizing(adapt ...func(*agentauth.Config)) *worker {
	w.t.Helper()
	guard := guardtest.Loopback(w.t, nil)
	web := guard.Client(netguard.Limits{}, 0)
	w.t.Cleanup(web.CloseIdleConnections)
	return w.credentialed(append([]func(*agentauth.Config){func(c *agentauth.Config) {
		c.OAuth, c.Sealer, c.Logger = must(oauth.New(oauth.Config{HTTP: web, Timeout: 5 * time.Second})), w.keys, w.logger()
		c.RefusedPause = time.Millisecond
	}}, adapt...)...)
}

// guarded returns an agent with an authorization server. Each of its tokens contains the canary.
func guarded(t testing.TB, o oauthtest.Options) *oauthtest.Server {
	t.Helper()
	o.Prefix = canary
	return oauthtest.New(t, o)
}

// clientFor registers a client whose secret contains the canary, and returns its credential.
func clientFor(s *oauthtest.Server, adapt ...func(*oauth.Credential)) oauth.Credential {
	s.Register("herald", canary+"-secret")
	c := oauth.Credential{Grant: oauth.GrantClientCredentials, ClientID: "herald", Method: oauth.MethodBasic, Secret: secret.New(canary + "-secret"), Resource: s.AgentURL}
	for _, f := range adapt {
		f(&c)
	}
	return c
}

// loginFor returns the credential that a login stores.
func loginFor(s *oauthtest.Server, scope string) oauth.Credential {
	s.Register("herald", "")
	return oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: "herald", Method: oauth.MethodNone, Resource: s.AgentURL, Scope: scope,
		RefreshToken: secret.New(s.RefreshToken("herald", scope))}
}

// authorize stores a credential for an agent's origin.
func (w *world) authorize(id *big.Int, rawURL, issuer string, c oauth.Credential) (released int) {
	w.t.Helper()
	scheme := store.SchemeClientCredentials
	if c.Grant == oauth.GrantRefreshToken {
		scheme = store.SchemeAuthorizationCode
	}
	return w.token(id, rawURL, scheme, "Authorization", string(must(c.Marshal())), func(t *store.Token) { t.Issuer = issuer })
}

// guardedBy registers an agent and stores a credential for it.
func (w *world) guardedBy(s *oauthtest.Server, c oauth.Credential) *big.Int {
	w.t.Helper()
	id := w.register(at(s.AgentURL))
	w.authorize(id, s.AgentURL, s.Issuer, c)
	return id
}

// deliver accepts feedback for an agent, waits until it is delivered and returns the number of attempts.
func (w *world) deliver(id *big.Int) int {
	w.t.Helper()
	return w.until(w.accept(w.feedback(id)), store.Delivered).Attempts
}

// bindingPath is the path of the file in which a domain lists the agents of its endpoints.
const bindingPath = "/.well-known/agent-registration.json"

// elsewhere returns a server that must get no request.
func elsewhere(t testing.TB) *recorder {
	t.Helper()
	r := newRecorder(t, "", "")
	t.Cleanup(func() {
		if n := r.requests(); n > 0 {
			t.Errorf("the other server was asked %d times; with a secret: %t", n, r.got(canary))
		}
	})
	return r
}

// TestOAuth checks each way to obtain an access token, and how it is used.
func TestOAuth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.authorizing()
	k.executor.Schedule = must(retry.NewSchedule(slices.Repeat([]time.Duration{100 * time.Millisecond}, 10))) // as many attempts as by default
	w.serve(k)
	t.Cleanup(func() { w.noCanary(k) })

	t.Run("each way arrives", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
		text := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))})
		for name, credential := range map[string]func(s *oauthtest.Server) oauth.Credential{
			"basic": func(s *oauthtest.Server) oauth.Credential { return clientFor(s) },
			"post": func(s *oauthtest.Server) oauth.Credential {
				return clientFor(s, func(c *oauth.Credential) { c.Method = oauth.MethodPost })
			},
			"key": func(s *oauthtest.Server) oauth.Credential {
				s.RegisterKey("herald", key.Public())
				return oauth.Credential{Grant: oauth.GrantClientCredentials, ClientID: "herald", Method: oauth.MethodKey, Key: secret.New(string(text)), Resource: s.AgentURL}
			},
			"login": func(s *oauthtest.Server) oauth.Credential { return loginFor(s, "") },
			"no resource": func(s *oauthtest.Server) oauth.Credential {
				return clientFor(s, func(c *oauth.Credential) { c.Resource = "" })
			},
		} {
			s := guarded(t, oauthtest.Options{RotateRefresh: true})
			id := w.guardedBy(s, credential(s))
			for range 3 {
				if n := w.deliver(id); n != 1 {
					t.Errorf("%s: %d attempts", name, n)
				}
			}
			calls := s.Calls()
			if len(calls) != 3 || len(s.TokenRequests()) != 1 || calls[2].Token != s.Tokens()[0].Access {
				t.Errorf("%s: %d calls, %d token requests", name, len(calls), len(s.TokenRequests()))
			}
		}
	})

	t.Run("refused and renewed", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{RotateRefresh: true})
		id := w.guardedBy(s, loginFor(s, ""))
		for range 3 { // each time with the newest refresh token
			if n := w.deliver(id); n != 1 {
				t.Errorf("%d attempts", n)
			}
			s.Revoke()
		}
		if n := len(s.TokenRequests()); n != 3 {
			t.Errorf("%d token requests", n)
		}
	})

	t.Run("many at once", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{RotateRefresh: true})
		id := w.guardedBy(s, loginFor(s, ""))
		w.deliver(id)
		s.Revoke()
		var ids []uuid.UUID
		for range 8 {
			ids = append(ids, w.accept(w.feedback(id)))
		}
		for _, d := range ids {
			w.until(d, store.Delivered)
		}
		if n := len(s.TokenRequests()); n != 2 {
			t.Errorf("%d token requests", n)
		}
	})

	t.Run("more scope", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.guardedBy(s, clientFor(s))
		w.deliver(id)
		s.Require("read", "feedback")
		if d := w.until(w.accept(w.feedback(id)), store.Held); !strings.Contains(d.Error, "wants more than the operator allowed: if it may have it, ") {
			t.Errorf("%s: %s", d.Reason, d.Error)
		}
		for _, token := range s.Tokens() {
			if token.Scope != "" {
				t.Errorf("a token is for %q, which nobody stored", token.Scope)
			}
		}
		// Problems that a renewal cannot solve: a login, a setting that the operator did not allow, and an agent that
		// always refuses.
		for name, tt := range map[string]struct {
			credential func(s *oauthtest.Server) oauth.Credential
			says       string
			spoil      bool
			tokens     int
		}{
			"a login": {func(s *oauthtest.Server) oauth.Credential { return loginFor(s, "read") }, `wants more (scope "feedback") than the login allowed`, false, 1},
			"limited": {func(s *oauthtest.Server) oauth.Credential {
				return clientFor(s, func(c *oauth.Credential) { c.Scope = "read" })
			}, "wants more than the operator allowed", false, 1},
			"never content": {func(s *oauthtest.Server) oauth.Credential {
				return clientFor(s, func(c *oauth.Credential) { c.Scope = "feedback" })
			}, "403", true, 2},
		} {
			s := guarded(t, oauthtest.Options{})
			id := w.guardedBy(s, tt.credential(s))
			w.deliver(id)
			if s.Require("feedback"); tt.spoil {
				s.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
					if !s.ToAgent(r) || !strings.Contains(string(must(io.ReadAll(r.Body))), `"tools/call"`) {
						return false
					}
					rw.Header().Set("WWW-Authenticate", `Bearer error="insufficient_scope", scope="feedback"`)
					http.Error(rw, "no", http.StatusForbidden)
					return true
				})
			}
			d := w.until(w.accept(w.feedback(id)), store.Held)
			if d.Reason != "auth_required" || !strings.Contains(d.Error, tt.says) {
				t.Errorf("%s: %s: %s", name, d.Reason, d.Error)
			}
			before := asked(s)
			for range 2 { // and no further request is made
				w.heldFor(w.accept(w.feedback(id)), "is not asked again for")
			}
			if n := len(s.TokenRequests()); n != tt.tokens || asked(s) != before {
				t.Errorf("%s: %d token requests, %d requests after %d", name, n, asked(s), before)
			}
			// After a replay, the agent is called, but the authorization server is not.
			ctx := heraldtest.Within(t, 20*time.Second)
			_, _, tasks, err := w.store.Replay(ctx, []uuid.UUID{d.ID}, false)
			if err != nil {
				t.Fatal(err)
			}
			w.dispatcher.Dispatch(ctx, tasks)
			heraldtest.AwaitState(t, func() bool { return asked(s) > before && w.row(d.ID).Status == store.Held }, func() string { return string(w.row(d.ID).Status) })
			if n := len(s.TokenRequests()); n != tt.tokens {
				t.Errorf("%s: %d token requests after a replay", name, n)
			}
		}
	})

	t.Run("no credential for it", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.register(at(s.AgentURL))
		for range 2 { // the second without a request
			w.heldFor(w.accept(w.feedback(id)), fmt.Sprintf("it wants OAuth: `worker token set 31337:%[1]s --client-id ID`, or `worker token login 31337:%[1]s`", id))
		}
		if n := w.authorize(id, s.AgentURL, s.Issuer, clientFor(s)); n != 2 {
			t.Errorf("%d released", n)
		}
		w.deliver(id)
	})

	t.Run("refused for good", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.guardedBy(s, clientFor(s))
		s.Unregister("herald")
		ids := []uuid.UUID{w.accept(w.feedback(id))}
		w.heldFor(ids[0], "refuses: invalid_client")
		for range 3 {
			ids = append(ids, w.accept(w.feedback(id)))
			w.heldFor(ids[len(ids)-1], "and not again for")
		}
		if n := len(s.TokenRequests()); n != 1 {
			t.Errorf("%d token requests", n)
		}
		if r := w.agentRow(id); r.State != store.StateNeedsAuth {
			t.Errorf("%+v", r)
		}
		if n := w.authorize(id, s.AgentURL, s.Issuer, clientFor(s)); n != 4 {
			t.Errorf("%d released", n)
		}
		for _, d := range ids {
			w.until(d, store.Delivered)
		}
	})

	t.Run("the agent refuses every token", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.guardedBy(s, clientFor(s))
		s.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
			if !s.ToAgent(r) || r.URL.Path != "/mcp" {
				return false
			}
			rw.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
			http.Error(rw, "no", http.StatusUnauthorized)
			return true
		})
		ids := []uuid.UUID{w.accept(w.feedback(id))}
		d := w.until(ids[0], store.Held)
		for _, want := range []string{"refused each of the last 4 access tokens", s.Issuer, "HTTP 401, invalid_token", "`worker token set 31337:" + id.String()} {
			if d.Reason != "auth_required" || !strings.Contains(d.Error, want) {
				t.Errorf("%s: %s; want %q", d.Reason, d.Error, want)
			}
		}
		before := asked(s)
		for range 2 {
			ids = append(ids, w.accept(w.feedback(id)))
			w.heldFor(ids[len(ids)-1], "and not again for")
		}
		if n := len(s.TokenRequests()); n != 5 || asked(s) != before {
			t.Errorf("%d token requests, %d requests after %d", n, asked(s), before)
		}
		s.Answer(nil)
		if n := w.authorize(id, s.AgentURL, s.Issuer, clientFor(s)); n != 3 {
			t.Errorf("%d released", n)
		}
		for _, d := range ids {
			w.until(d, store.Delivered)
		}
	})

	t.Run("every token refused to many at once", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.guardedBy(s, clientFor(s))
		s.Answer(func(_ http.ResponseWriter, r *http.Request) bool {
			if s.ToAgent(r) && r.URL.Path == "/mcp" {
				s.Revoke()
			}
			return false
		})
		var ids []uuid.UUID
		for range 8 {
			ids = append(ids, w.accept(w.feedback(id)))
		}
		for _, d := range ids {
			if d := w.until(d, store.Held); d.Reason != "auth_required" {
				t.Errorf("%s: %s", d.Reason, d.Error)
			}
		}
		if n := len(s.TokenRequests()); n != 5 { // the first one and four renewals
			t.Errorf("%d token requests", n)
		}
	})

	t.Run("revoked while it is renewed", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{RotateRefresh: true})
		id := w.guardedBy(s, loginFor(s, ""))
		w.deliver(id)
		var revoked atomic.Int32
		s.Answer(func(_ http.ResponseWriter, r *http.Request) bool {
			if s.ToAgent(r) && r.URL.Path == "/mcp" && revoked.Add(1) <= 3 {
				s.Revoke()
			}
			return false
		})
		d := w.until(w.accept(w.feedback(id)), store.Delivered)
		if first := d.History[0]; first.Reason != "server_error" || !strings.Contains(first.Error, "refused an access token that "+s.Issuer+" had just given for it (HTTP 401, invalid_token)") {
			t.Errorf("%s: %s", first.Reason, first.Error)
		}
		if r := w.agentRow(id); r.State == store.StateNeedsAuth {
			t.Errorf("%+v", r)
		}
		for range 3 { // the refusals are over: a token that is revoked later is renewed at once
			s.Revoke()
			if n := w.deliver(id); n != 1 {
				t.Errorf("%d attempts", n)
			}
		}
	})

	t.Run("once in an attempt", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		for name, tt := range map[string]struct {
			status int
			opens  bool // the handshake is refused at first, too
			tokens int  // each of which is refused once
		}{
			"refused twice": {401, true, 5}, "forbidden": {403, false, 1},
		} {
			s := guarded(t, oauthtest.Options{})
			id := w.guardedBy(s, clientFor(s))
			var opened atomic.Bool
			s.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
				body := string(must(io.ReadAll(r.Body)))
				first := tt.opens && strings.Contains(body, `"initialize"`) && !opened.Swap(true)
				if !s.ToAgent(r) || !first && !strings.Contains(body, `"tools/call"`) {
					return false
				}
				http.Error(rw, "no", tt.status)
				return true
			})
			if d := w.until(w.accept(w.feedback(id)), store.Held); d.Reason != "auth_required" || len(s.TokenRequests()) != tt.tokens {
				t.Errorf("%s: %s: %s, %d token requests", name, d.Reason, d.Error, len(s.TokenRequests()))
			}
		}
	})

	t.Run("an access token that does not open", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.guardedBy(s, clientFor(s))
		w.deliver(id)
		w.sql(`UPDATE herald.agent_mcp_access SET ciphertext = substr(ciphertext, 1, 40) WHERE agent_id = $1::numeric`, id.String())
		other := w.authorizing() // another worker, which knows only the stored tokens
		a, err := other.executor.Authorizer.Authorize(t.Context(), w.probing(id), endpointAt(s.AgentURL))
		if err != nil || !strings.Contains(a.Note(), "access token") || len(s.TokenRequests()) != 2 {
			t.Errorf("%+v, %v, %d token requests", a, err, len(s.TokenRequests()))
		}
	})

	t.Run("who looks once renews once", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.guardedBy(s, clientFor(s))
		k := w.authorizing()
		z, ctx := k.executor.Authorizer, heraldtest.Within(t, 20*time.Second)
		a := must(z.Authorize(ctx, w.probing(id), endpointAt(s.AgentURL)))
		elsewhere := errors.New("something else")
		if err := z.WithTokenRefresh(ctx, a, func(context.Context, mcpcall.Endpoint) error { return elsewhere }); err != elsewhere || a.Refreshed() {
			t.Error(a.Refreshed(), err)
		}
		s.Revoke()
		var refused error
		err := z.WithTokenRefresh(ctx, a, func(ctx context.Context, e mcpcall.Endpoint) error {
			_, err := k.pool.Tools(ctx, e, true)
			refused = cmp.Or(refused, err)
			return err
		})
		if err != nil || !a.Refreshed() || refused == nil {
			t.Fatal(a.Refreshed(), err, refused)
		}
		bare := &agentauth.Authorization{Subject: w.probing(id), Endpoint: endpointAt(s.AgentURL)}
		err = z.WithTokenRefresh(ctx, bare, func(context.Context, mcpcall.Endpoint) error { return refused })
		if bare.Refreshed() || err != refused || len(s.TokenRequests()) != 2 {
			t.Error("renewed though nothing was sent:", err)
		}
	})

	t.Run("moved by SQL", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		for _, change := range []string{"issuer = 'https://evil.example'", "scheme = 'oauth_authorization_code'", "ciphertext = substr(ciphertext, 1, 60)"} {
			s := guarded(t, oauthtest.Options{})
			id := w.guardedBy(s, clientFor(s))
			w.sql(`UPDATE herald.agent_mcp_tokens SET `+change+` WHERE agent_id = $1::numeric`, id.String())
			w.heldFor(w.accept(w.feedback(id)), "it was sealed for another agent, origin or header, or is damaged")
			if n := asked(s); n != 0 {
				t.Errorf("%s: %d requests", change, n)
			}
		}
	})
}

// asked counts the requests to an agent and its authorization server, except those for the binding file.
func asked(s *oauthtest.Server) (n int) {
	for _, r := range s.Requests() {
		if r.Path != bindingPath {
			n++
		}
	}
	return n
}

// TestBadHours: deliveries that are held while the authorization server refuses are released when it accepts again,
// each time.
func TestBadHours(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.authorizing(func(c *agentauth.Config) { c.Patience = time.Nanosecond }))
	s := guarded(t, oauthtest.Options{})
	cred := clientFor(s)
	id := w.guardedBy(s, cred)
	for hour := range 3 {
		s.Unregister("herald")
		s.Revoke()
		held := []uuid.UUID{w.accept(w.feedback(id)), w.accept(w.feedback(id))}
		for _, d := range held {
			if r := w.until(d, store.Held); !strings.Contains(r.Error, "invalid_client") {
				t.Errorf("hour %d: %s", hour, r.Error)
			}
		}
		clientFor(s) // registers the client again
		for _, d := range append(held, w.accept(w.feedback(id))) {
			w.until(d, store.Delivered)
		}
	}
}

// TestOAuthGoesNowhereElse: an agent or an authorization server names another server, in each possible way. The other
// server gets neither a credential nor a token.
func TestOAuthGoesNowhereElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.authorizing()
	w.serve(k)
	t.Cleanup(func() { w.noCanary(k) })
	refuse := func(rw http.ResponseWriter, metadata string) bool {
		rw.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+metadata+`"`)
		http.Error(rw, "no", http.StatusUnauthorized)
		return true
	}
	for _, tt := range []struct {
		name   string
		spoil  func(s *oauthtest.Server, evil *recorder) func(http.ResponseWriter, *http.Request) bool // answers
		says   string
		tokens int    // token requests at the right server
		scope  string // of the credential; with one, the agent is not asked before it refuses a token
	}{
		{"another issuer is named", func(s *oauthtest.Server, evil *recorder) func(http.ResponseWriter, *http.Request) bool {
			s.NameIssuers(evil.URL)
			return nil
		}, "its authorization server is http://127.0.0.1:", 0, ""},
		{"another issuer is named with a refusal", func(s *oauthtest.Server, evil *recorder) func(http.ResponseWriter, *http.Request) bool {
			s.NameIssuers(evil.URL)
			return func(rw http.ResponseWriter, r *http.Request) bool {
				return s.ToAgent(r) && r.URL.Path == "/mcp" && refuse(rw, s.AgentURL[:strings.LastIndex(s.AgentURL, "/")]+"/.well-known/oauth-protected-resource/mcp")
			}
		}, "its authorization server is http://127.0.0.1:", 1, "feedback"},
		{"metadata elsewhere", func(s *oauthtest.Server, evil *recorder) func(http.ResponseWriter, *http.Request) bool {
			return func(rw http.ResponseWriter, r *http.Request) bool {
				return s.ToAgent(r) && r.URL.Path == "/mcp" && refuse(rw, evil.URL+"/.well-known/oauth-protected-resource")
			}
		}, "leads to another origin", 1, ""},
		{"metadata by a redirect", func(s *oauthtest.Server, evil *recorder) func(http.ResponseWriter, *http.Request) bool {
			return func(rw http.ResponseWriter, r *http.Request) bool {
				if s.ToAgent(r) && strings.HasPrefix(r.URL.Path, "/.well-known/o") {
					http.Redirect(rw, r, evil.URL, http.StatusTemporaryRedirect)
					return true
				}
				return s.ToAgent(r) && r.URL.Path == "/mcp" && refuse(rw, "")
			}
		}, "redirects", 1, ""},
		{"the server's metadata by a redirect", func(s *oauthtest.Server, evil *recorder) func(http.ResponseWriter, *http.Request) bool {
			return func(rw http.ResponseWriter, r *http.Request) bool {
				if !s.ToAgent(r) && strings.HasPrefix(r.URL.Path, "/.well-known/o") {
					http.Redirect(rw, r, evil.URL, http.StatusPermanentRedirect)
					return true
				}
				return false
			}
		}, "redirects", 0, ""},
		{"the server's metadata of another issuer", func(s *oauthtest.Server, evil *recorder) func(http.ResponseWriter, *http.Request) bool {
			return func(rw http.ResponseWriter, r *http.Request) bool {
				if !s.ToAgent(r) && strings.HasPrefix(r.URL.Path, "/.well-known/o") {
					fmt.Fprintf(rw, `{"issuer":%q,"token_endpoint":%q}`, evil.URL, evil.URL+"/token")
					return true
				}
				return false
			}
		}, "and the credential is for http://127.0.0.1:", 0, ""},
		{"the token endpoint redirects", func(s *oauthtest.Server, evil *recorder) func(http.ResponseWriter, *http.Request) bool {
			return func(rw http.ResponseWriter, r *http.Request) bool {
				if !s.ToAgent(r) && r.Method == http.MethodPost {
					http.Redirect(rw, r, evil.URL+"/token", http.StatusTemporaryRedirect)
					return true
				}
				return false
			}
		}, "HTTP 307", 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := w.in(t)
			evil := elsewhere(t)
			s := guarded(t, oauthtest.Options{Scopes: []string{"feedback"}})
			s.Answer(tt.spoil(s, evil))
			id := w.guardedBy(s, clientFor(s, func(c *oauth.Credential) { c.Scope = tt.scope }))
			w.heldFor(w.accept(w.feedback(id)), tt.says)
			if n := len(s.TokenRequests()); n != tt.tokens || len(s.Calls()) != 0 {
				t.Errorf("%d token requests, %d calls", n, len(s.Calls()))
			}
		})
	}
	for _, code := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint("the agent redirects ", code), func(t *testing.T) {
			t.Parallel()
			w := w.in(t)
			evil := elsewhere(t)
			s := guarded(t, oauthtest.Options{})
			s.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
				if !s.ToAgent(r) || r.URL.Path == bindingPath { // the resolver follows redirects
					return false
				}
				http.Redirect(rw, r, evil.URL, code)
				return true
			})
			w.until(w.accept(w.feedback(w.guardedBy(s, clientFor(s)))), store.Rejected)
		})
	}
	t.Run("the agent moved", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		evil := elsewhere(t)
		s := guarded(t, oauthtest.Options{})
		id := w.register(at(evil.URL))
		w.authorize(id, s.AgentURL, s.Issuer, clientFor(s))
		w.heldFor(w.accept(w.feedback(id)), "then `worker token set 31337:"+id.String()+" --origin "+evil.URL+" --client-id …`")
		if n := len(s.Requests()); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
	t.Run("an address that the guard refuses", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.register(at(s.AgentURL))
		w.authorize(id, s.AgentURL, "https://169.254.169.254", clientFor(s, func(c *oauth.Credential) { c.Scope = "x" }))
		w.heldFor(w.accept(w.feedback(id)), "HERALD_ALLOW_NETWORKS")
		if n := len(s.TokenRequests()); n != 0 {
			t.Errorf("%d token requests", n)
		}
	})
}

// TestAuthorizationServerFaults: each fault has its own text. The delivery is retried or held, and is delivered when
// the fault is over.
func TestAuthorizationServerFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.authorizing()
	w.serve(k)
	t.Cleanup(func() { w.noCanary(k) })
	answer := func(status int, header, value, body string) func(http.ResponseWriter) {
		return func(rw http.ResponseWriter) {
			if header != "" {
				rw.Header().Set(header, value)
			}
			rw.WriteHeader(status)
			_, _ = rw.Write([]byte(body))
		}
	}
	endless := func(rw http.ResponseWriter) {
		junk := []byte(`{"access_token":"` + strings.Repeat("x", 32<<10))
		for range 1000 { // until the connection is closed
			if _, err := rw.Write(junk); err != nil {
				return
			}
		}
	}
	for _, tt := range []struct {
		name   string
		fault  func(http.ResponseWriter) // the first answer to a POST
		reason reason.Reason
		says   string
		held   bool
	}{
		{"500", answer(500, "", "", "oops"), "server_error", "HTTP 500", false},
		{"503", answer(503, "Retry-After", "0", ""), "server_error", "HTTP 503", false},
		{"endless", endless, "server_error", "longer than 65536 bytes", false},
		{"no answer", func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, "connect_failed", "gives no usable answer", false},
		{"invalid_grant", answer(400, "Content-Type", "application/json", `{"error":"invalid_grant","error_description":"`+canary+`-secret"}`), "auth_required", "invalid_grant", true},
		{"418", answer(418, "", "", "short and stout"), "auth_required", "HTTP 418", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := w.in(t)
			s := guarded(t, oauthtest.Options{})
			var faults atomic.Int32
			s.Answer(func(rw http.ResponseWriter, r *http.Request) bool {
				if s.ToAgent(r) || r.Method != http.MethodPost || faults.Add(1) > 1 {
					return false
				}
				tt.fault(rw)
				return true
			})
			id := w.guardedBy(s, clientFor(s))
			d := w.accept(w.feedback(id))
			if tt.held {
				w.heldFor(d, tt.says)
				w.authorize(id, s.AgentURL, s.Issuer, clientFor(s))
			}
			r := w.until(d, store.Delivered)
			if tt.held {
				return
			}
			if first := r.History[0]; first.Reason != tt.reason || !strings.Contains(first.Error, tt.says) || !strings.Contains(first.Error, "no access token for ") {
				t.Errorf("%s: %s; want %s, %q", first.Reason, first.Error, tt.reason, tt.says)
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.register(at(s.AgentURL))
		w.authorize(id, s.AgentURL, "http://127.0.0.1:1", clientFor(s, func(c *oauth.Credential) { c.Scope = "x" }))
		d := w.until(w.accept(w.feedback(id)), store.Dead)
		if d.Reason != "connect_failed" || !strings.Contains(d.Error, "127.0.0.1:1") || w.agentRow(id).Epoch != 1 {
			t.Errorf("%s: %s, epoch %d", d.Reason, d.Error, w.agentRow(id).Epoch)
		}
	})
	t.Run("without an OAuth client", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		s := guarded(t, oauthtest.Options{})
		id := w.guardedBy(s, clientFor(s))
		c := must(agentauth.New(agentauth.Config{Ledger: w.store, Opener: w.keys}))
		if _, err := c.Authorize(t.Context(), w.probing(id), endpointAt(s.AgentURL)); err == nil || !strings.Contains(err.Error(), "nobody here can get access tokens") {
			t.Error(err)
		}
	})
}

// Seal uses the present primary key.
func (r *rotating) Seal(plain []byte, b secret.Binding) ([]byte, error) {
	return r.Load().Seal(plain, b)
}

// TestOAuthRotationUnderLoad: the keys are rotated twice, and credentials and access tokens are reencrypted, while both
// are renewed. No delivery fails, and no refresh token is lost.
func TestOAuthRotationUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys := &rotating{}
	keys.Store(w.keys)
	w.serve(w.authorizing(func(c *agentauth.Config) { c.Opener, c.Sealer = keys, keys }))
	var agents []*big.Int
	var sites []*oauthtest.Server
	for range 3 {
		s := guarded(t, oauthtest.Options{RotateRefresh: true})
		agents, sites = append(agents, w.guardedBy(s, loginFor(s, ""))), append(sites, s)
	}
	ctx := heraldtest.Within(t, 60*time.Second)
	reseal := func(now *secret.Keyset) {
		for _, token := range must(w.store.TokensAfter(ctx, nil)) { // unless it was renewed
			must(w.store.ResealToken(ctx, token, must(now.Seal(must(now.Open(token.Ciphertext, token.Binding())), token.Binding()))))
		}
		for _, token := range must(w.store.AccessAfter(ctx, nil)) {
			must(w.store.ResealAccess(ctx, token, must(now.Seal(must(now.Open(token.Access.Ciphertext, token.AccessBinding())), token.AccessBinding()))))
		}
	}
	for range 2 {
		for _, id := range agents { // with a valid access token, because an attempt renews only once
			w.deliver(id)
		}
		var ids []uuid.UUID
		for i := range 9 {
			ids = append(ids, w.accept(w.feedback(agents[i%3])))
		}
		added, id, err := keys.Load().Add()
		if err != nil {
			t.Fatal(err)
		}
		keys.Store(added)
		promoted := must(added.Promote(id))
		keys.Store(promoted)
		for _, s := range sites {
			s.Revoke()
		}
		reseal(promoted)
		for _, id := range ids {
			if d := w.until(id, store.Delivered); d.Attempts != 1 {
				t.Errorf("%d attempts, the first: %s: %s", d.Attempts, d.History[0].Reason, d.History[0].Error)
			}
		}
	}
	reseal(keys.Load())
	last := must(keys.Load().Remove(w.keys.PrimaryID()))
	keys.Store(last)
	for i, s := range sites {
		s.Revoke()
		w.deliver(agents[i])
	}
}

// TestTwoWorkersRenew: two processes with one store renew a token once.
func TestTwoWorkersRenew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := guarded(t, oauthtest.Options{RotateRefresh: true})
	w.serve(w.authorizing())
	w.serve(w.authorizing())
	id := w.guardedBy(s, loginFor(s, ""))
	for round := 1; round <= 3; round++ {
		var ids []uuid.UUID
		for range 8 {
			ids = append(ids, w.accept(w.feedback(id)))
		}
		for _, d := range ids {
			if d := w.until(d, store.Delivered); d.Attempts != 1 {
				t.Errorf("%d attempts, the first: %s: %s", d.Attempts, d.History[0].Reason, d.History[0].Error)
			}
		}
		if n := len(s.TokenRequests()); n != round {
			t.Errorf("%d token requests in round %d", n, round)
		}
		s.Revoke()
	}
}

// probing returns the subject of a single request by an operator.
func (w *world) probing(id *big.Int) agentauth.Subject {
	return agentauth.Subject{Agent: w.agentOf(id), Insist: true}
}

func endpointAt(rawURL string) mcpcall.Endpoint {
	return mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: rawURL}
}
