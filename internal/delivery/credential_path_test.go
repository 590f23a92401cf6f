package delivery

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/oauth/oauthtest"
	"github.com/agentherald/herald/internal/store"
)

// tricks are paths that some server may interpret as a path below /evil instead of /victim, or that have no known
// meaning.
var tricks = []string{"/victim/../evil", "/victim/%2e%2e/evil", "/victim/.%2E/evil", "/victim/%2E./evil", "/victim/..%2fevil", "/victim%2F..%2Fevil",
	"/victim/..%5cevil", "/victim/%252e%252e/evil", "/victim/..;/evil", "/victim/..%3bx=y/evil", "/victim/;/evil", "/victim//evil", "/victim/./evil",
	"/victim/.../evil", "/victim/..%20/evil", "/victim/%c0%ae%c0%ae/evil", "/victim/%00/evil", "/victim/..%23/evil",
	"/victim/..%3f/evil", "/victim/..%3Fx=/evil", "/victim/%ef%bc%8e%ef%bc%8e/evil", "/victim/..%ef%bc%8fevil", "/./victim/x", "//victim/x", "/x/../victim"}

// TestTokensKeepTheirPath: at an origin with many users, a token is sent only to the path it was stored for and below,
// with any registered URL.
func TestTokensKeepTheirPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.credentialed()
	w.serve(k)
	t.Cleanup(func() { w.noCanary(k) })
	type row struct {
		stored, now string
		goes        bool
	}
	rows := []row{{"/victim", "/victim", true}, {"/victim", "/victim/mcp", true}, {"/victim", "/victim/", true}, {"/victim", "/victim?x=/../evil", true},
		{"", "/any/where", true}, {"/", "/any/../where", true}, {"/victim/a%2fb", "/victim/a%2fb", true}, {"/victim", "/victim/a;b", true},
		{"/victim", "/evil", false}, {"/victim", "/victims", false}, {"/victim", "/", false}, {"/victim", "", false}, {"/victim/mcp", "/victim", false},
		{"/victim/", "/victim", false}, {"/victim", "/Victim", false}, {"/victim", "/%76ictim", false}}
	for _, trick := range tricks {
		rows = append(rows, row{"/victim", trick, false})
	}
	for i, tt := range rows {
		t.Run(fmt.Sprintf("%q at %q", tt.stored, tt.now), func(t *testing.T) {
			t.Parallel()
			w := w.in(t)
			a := newRecorder(t, "", "")
			id := w.register(at(a.URL + strings.ReplaceAll(tt.now, "%", "%25"))) // encoded for a data: URI
			w.bearer(id, a.URL+tt.stored)
			d := w.accept(w.feedback(id))
			if tt.goes {
				if w.until(d, store.Delivered); !a.got(canary) {
					t.Error("the token was not sent")
				}
				return
			}
			held := w.heldFor(d, "the agent moved: it is at "+a.URL)
			option := fmt.Sprintf("`worker token set %d:%s --origin ", w.net.ChainID(), id)
			if a.requests() > 0 || !strings.Contains(held.Error, option) {
				t.Errorf("row %d: %d requests, and %s", i, a.requests(), held.Error)
			}
		})
	}
}

// moves registers another URL for an agent, and raises its epoch so that all workers resolve it again.
func (w *world) moves(id *big.Int, rawURL string) {
	w.t.Helper()
	ctx := heraldtest.Within(w.t, 20*time.Second)
	if _, err := w.net.SetURI(ctx, w.net.Account(0), id, "data:application/json,"+string(asJSON(at(rawURL)))); err != nil {
		w.t.Fatal(err)
	}
	w.sql(`UPDATE herald.agents SET epoch = epoch + 1 WHERE agent_id = $1::numeric`, id.String())
}

// TestJobsNameNoPathOfAToken: a job may name an endpoint at a token's origin. That endpoint is called without the
// token.
func TestJobsNameNoPathOfAToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.credentialed()
	w.serve(k)
	t.Cleanup(func() { w.noCanary(k) })
	for _, tt := range []struct {
		stored, named string
		goes          bool
	}{{"/victim", "/victim", true}, {"/victim", "/victim/below", false}, {"/victim", "/victim/", false}, {"/victim", "/evil", false},
		{"/victim", "/victim?x", false}, {"/victim", "/victim?", false}, {"/", "/evil", false}, {"", "/evil", false}, {"/", "", true}} {
		t.Run(fmt.Sprintf("%q named %q", tt.stored, tt.named), func(t *testing.T) {
			t.Parallel()
			w := w.in(t)
			a := newRecorder(t, "", "")
			id := w.register(nil)
			w.bearer(id, a.URL+tt.stored)
			w.until(w.accept(with(w.feedback(id), own(a.URL+tt.named, nil))), store.Delivered)
			if a.got(canary) != tt.goes {
				t.Errorf("the token was sent: %t", !tt.goes)
			}
		})
	}

	t.Run("it wants a token", func(t *testing.T) {
		t.Parallel()
		w := w.in(t)
		a := newRecorder(t, "Authorization", "Bearer "+canary)
		id := w.register(at(a.URL + "/victim"))
		w.bearer(id, a.URL+"/victim")
		d := w.heldFor(w.accept(with(w.feedback(id), own(a.URL+"/evil", nil))), "it is for "+a.URL+"/victim, and an endpoint that a job names")
		if want := fmt.Sprintf("`worker token set %d:%s --origin %s/evil`", w.net.ChainID(), id, a.URL); a.got(canary) || !strings.Contains(d.Error, want) {
			t.Errorf("with the token %t: %s", a.got(canary), d.Error)
		}
		w.until(w.accept(w.feedback(id)), store.Delivered) // a refusal at a job's endpoint does not affect the agent
	})
}

// TestRefusalElsewhere: a job names another endpoint at the agent's origin, which refuses the call. Deliveries to the
// registered endpoint are not held.
func TestRefusalElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.credentialed())
	a := newAgent(t, func(a *agent) {
		a.on = func(_ string, rw http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
			if r.URL.Path == "/evil" {
				http.Error(rw, "no", http.StatusUnauthorized)
			}
			return r.URL.Path == "/evil"
		}
	})
	id := w.register(at(a.URL + "/victim"))
	w.heldFor(w.accept(with(w.feedback(id), own(a.URL+"/evil", nil))), "401")
	w.until(w.accept(w.feedback(id)), store.Delivered)
}

// TestEndpointOfJobSaysNothingOfTheAgent: calls at an endpoint that a job names leave the agent's row unchanged.
func TestEndpointOfJobSaysNothingOfTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	healthy, stranger := newRecorder(t, "", ""), newAgent(t, func(a *agent) {
		a.on = func(_ string, rw http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			http.Error(rw, "down", http.StatusServiceUnavailable)
			return true
		}
	})
	id := w.register(at(healthy.URL + "/mcp"))
	key := w.agentOf(id)
	w.until(w.accept(with(w.feedback(id), own(stranger.URL+"/mcp", nil))), store.Waiting)
	if row := must(w.store.AgentRow(t.Context(), key)); row.State != store.StatePending || row.Endpoint != "" || row.LastError != "" || row.FailingSince != nil {
		t.Errorf("after a failure at a stranger's endpoint: %+v", row)
	}
	dead := w.register(at(stranger.URL + "/dead"))
	w.until(w.accept(with(w.feedback(dead), own(healthy.URL+"/mcp", nil))), store.Delivered)
	if row := must(w.store.AgentRow(t.Context(), w.agentOf(dead))); row.State != store.StatePending || row.LastOKAt != nil || row.Endpoint != "" || len(row.Tools) > 0 {
		t.Errorf("after a success at a stranger's endpoint: %+v", row)
	}
}

// TestTokensWithoutAPath: a token that an earlier version stored without a path is sent to the registered URL. From
// then on it is sent nowhere else.
func TestTokensWithoutAPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, other := w.credentialed(), w.credentialed()
	stop := w.serve(first)
	t.Cleanup(func() { w.noCanary(first) })
	a := newRecorder(t, "", "")
	id := w.register(at(a.URL + "/victim"))
	w.token(id, a.URL, store.SchemeBearer, "Authorization", canary, func(t *store.Token) { t.Path = "" })
	named := w.probing(id)
	named.NamedByJob = true
	must(other.executor.Authorizer.Authorize(t.Context(), named, endpointAt(a.URL))) // reads the token without a path
	w.until(w.accept(with(w.feedback(id), own(a.URL+"/evil", nil))), store.Delivered)
	w.until(w.accept(with(w.feedback(id), own(a.URL+"/victim", nil))), store.Delivered)
	if a.got(canary) {
		t.Error("a job has a token sent that nobody stored for its endpoint")
	}
	w.until(w.accept(w.feedback(id)), store.Delivered)
	if !a.got(canary) {
		t.Error("a token of before does not go to the registered URL")
	}
	stop()

	// A worker that cached the token before it had a path applies the path, too.
	if _, err := other.executor.Authorizer.Authorize(t.Context(), w.probing(id), endpointAt(a.URL+"/evil")); err == nil ||
		!strings.Contains(err.Error(), "its token was stored for "+a.URL+"/victim") {
		t.Error(err)
	}
	w.moves(id, a.URL+"/evil")
	w.serve(w.credentialed())
	requests := a.requests()
	w.heldFor(w.accept(w.feedback(id)), "its token was stored for "+a.URL+"/victim")
	if a.requests() != requests {
		t.Error("the agent was asked")
	}
}

// TestOAuthKeepsItsPath: access tokens are bound to a path in the same way as stored tokens.
func TestOAuthKeepsItsPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := guarded(t, oauthtest.Options{})
	k := w.authorizing()
	w.serve(k)
	t.Cleanup(func() { w.noCanary(k) })
	for name, c := range map[string]oauth.Credential{"a client": clientFor(s), "a login": loginFor(s, "")} {
		id := w.register(at(strings.TrimSuffix(s.AgentURL, "/mcp") + "/evil/mcp"))
		w.authorize(id, s.AgentURL, s.Issuer, c)
		w.heldFor(w.accept(w.feedback(id)), "the agent moved: it is at ")
		if n := len(s.TokenRequests()); n > 0 {
			t.Errorf("%s: %d requests for tokens", name, n)
		}
	}
}
