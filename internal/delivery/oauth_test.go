package delivery

import (
	"fmt"
	"math/big"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
	"github.com/google/uuid"
)

// authorizing returns a worker that obtains access tokens.
func (w *world) authorizing(adapt ...func(*auth.Config)) *worker {
	w.t.Helper()
	guard := guardtest.Loopback(w.t, nil)
	web := guard.Client(netguard.Limits{}, 0)
	w.t.Cleanup(web.CloseIdleConnections)
	return w.credentialed(append([]func(*auth.Config){func(c *auth.Config) {
		c.OAuth, c.Logger = must(oauth.New(oauth.Config{HTTP: web, Timeout: 5 * time.Second})), w.logger()
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
	scheme := records.SchemeClientCredentials
	if c.Grant == oauth.GrantRefreshToken {
		scheme = records.SchemeAuthorizationCode
	}
	return w.token(id, rawURL, scheme, "Authorization", string(must(c.Marshal())), func(t *records.Token) { t.Issuer = issuer })
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
	return w.until(w.accept(w.feedback(id)), outcome.Delivered).Attempts
}

// TestOAuth checks the deliveries of agents that get no access token. TestTwoWorkersRenew checks those of an agent that
// accepts access tokens, and auth.TestFreshRefused those of one that refuses them.
func TestOAuth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.authorizing()
	w.serve(k)
	t.Cleanup(func() { w.noCanary(k) })

	w.runParallel(t, "no credential for it", func(t *testing.T, w *world) {
		s := guarded(t, oauthtest.Options{})
		id := w.register(at(s.AgentURL))
		for range 2 { // the second without a request
			w.heldFor(w.accept(w.feedback(id)), fmt.Sprintf("it wants OAuth: `worker token set 31337:%[1]s --client-id ID`, or `worker token login 31337:%[1]s`", id))
		}
		heraldtest.Equal(t, "released", w.authorize(id, s.AgentURL, s.Issuer, clientFor(s)), 2)
		w.deliver(id)
	})

	// Package oauth tests each other way to name another server, and mcpcall that redirects are not followed.
	w.runParallel(t, "the agent names another server", func(t *testing.T, w *world) {
		evil, s := newRecorder(t, "", ""), guarded(t, oauthtest.Options{})
		s.NameIssuers(evil.URL)
		w.heldFor(w.accept(w.feedback(w.guardedBy(s, clientFor(s)))), "its authorization server is http://127.0.0.1:")
		heraldtest.Equal(t, "requests to the other server, for tokens, and calls", []int{evil.requests(), len(s.TokenRequests()), len(s.Calls())},
			[]int{0, 0, 0})
	})
}

// TestReleasedAfterEachRefusal: deliveries that are held while the authorization server refuses are released when it
// accepts again, each time.
func TestReleasedAfterEachRefusal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.authorizing(func(c *auth.Config) { c.RefusalPause = time.Nanosecond }))
	s := guarded(t, oauthtest.Options{})
	cred := clientFor(s)
	id := w.guardedBy(s, cred)
	for range 3 {
		s.Unregister("herald")
		s.Revoke()
		held := []uuid.UUID{w.accept(w.feedback(id)), w.accept(w.feedback(id))}
		for _, d := range held {
			w.heldFor(d, "invalid_client")
		}
		clientFor(s) // registers the client again
		for _, d := range append(held, w.accept(w.feedback(id))) {
			w.until(d, outcome.Delivered)
		}
	}
}

// rotating is a keyset that is replaced while it is used, as a roll-out does it.
type rotating struct{ atomic.Pointer[secret.Keyset] }

func (r *rotating) Open(cipher []byte, b secret.Binding) ([]byte, error) {
	return r.Load().Open(cipher, b)
}

// Seal uses the present primary key.
func (r *rotating) Seal(plain []byte, b secret.Binding) ([]byte, error) {
	return r.Load().Seal(plain, b)
}

// TestRotationUnderLoad: the keys are rotated twice, and bearer tokens, credentials and access tokens are reencrypted,
// while they are used and renewed. No delivery fails, and no refresh token is lost.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys := &rotating{}
	keys.Store(w.keys)
	w.serve(w.authorizing(func(c *auth.Config) { c.Keys, c.Age = keys, 20*time.Millisecond }))
	var agents []*big.Int
	var sites []*oauthtest.Server
	for range 3 {
		s := guarded(t, oauthtest.Options{RotateRefresh: true})
		agents, sites = append(agents, w.guardedBy(s, loginFor(s, ""))), append(sites, s)
	}
	plain := newRecorder(t, "Authorization", "Bearer "+canary)
	agents = append(agents, w.register(at(plain.URL)))
	w.bearer(agents[3], plain.URL)
	ctx := heraldtest.Within(t, 60*time.Second)
	reseal := func(now *secret.Keyset) {
		for _, token := range must(records.New(w.store).TokensAfter(ctx, nil)) { // unless it was renewed
			must(records.New(w.store).ResealToken(ctx, token, must(now.Seal(must(now.Open(token.Ciphertext, token.Binding())), token.Binding()))))
		}
		for _, token := range must(records.New(w.store).AccessAfter(ctx, nil)) {
			must(records.New(w.store).ResealAccess(ctx, token, must(now.Seal(must(now.Open(token.Access.Ciphertext, token.AccessBinding())), token.AccessBinding()))))
		}
	}
	for range 2 {
		for _, id := range agents { // with a valid access token, because an attempt renews only once
			w.deliver(id)
		}
		var ids []uuid.UUID
		for i := range 12 {
			ids = append(ids, w.accept(w.feedback(agents[i%len(agents)])))
		}
		added, id, err := keys.Load().Add()
		heraldtest.Must(t, err)
		keys.Store(added)
		promoted := must(added.Promote(id))
		keys.Store(promoted)
		for _, s := range sites {
			s.Revoke()
		}
		reseal(promoted)
		for _, id := range ids {
			w.ends(id, outcome.Delivered, "", 1)
		}
	}
	reseal(keys.Load())
	last := must(keys.Load().Remove(w.keys.PrimaryID()))
	keys.Store(last)
	for _, token := range must(records.New(w.store).TokensAfter(ctx, nil)) { // no token needs the first key
		must(last.Open(token.Ciphertext, token.Binding()))
	}
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
			w.ends(d, outcome.Delivered, "", 1)
		}
		heraldtest.Equal(t, fmt.Sprint("token requests in round ", round), len(s.TokenRequests()), round)
		s.Revoke()
	}
}
