package delivery

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	neturl "net/url"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// guarded returns a worker whose requests for documents, files, endpoints and access tokens all use one guard of the
// test's own.
func (w *world) guarded(t testing.TB, cfg netguard.Config) *worker {
	t.Helper()
	guard := must(netguard.New(cfg))
	fetcher, resolve := w.in(t).newResolver(ipfs.Config{Guard: guard}, nil)
	pool := newPool(t, mcpcall.Config{Guard: guard, Logger: w.logger()})
	web := guard.Client(netguard.Limits{}, 0)
	t.Cleanup(web.CloseIdleConnections)
	z := must(auth.New(auth.Config{Ledger: w.store, Records: records.New(w.store), Keys: w.keys, Classify: classify.Error, Logger: w.logger(),
		OAuth: must(oauth.New(oauth.Config{HTTP: web}))}))
	return w.newWorker(func(c *Config) { c.Resolver, c.Fetcher, c.Caller, c.Authorizer = resolve, fetcher, pool, z })
}

// urlPositions are the places where an untrusted party may put a URL, with the step that uses it. URLs in other places
// are not dialled.
var urlPositions = []struct {
	name, stage string
	put         func(w *world, url string) uuid.UUID
}{
	{"tokenURI", "resolve", func(w *world, url string) uuid.UUID {
		j, _ := w.rate(devnet.Feedback{AgentID: w.registerURI(url)})
		return w.accept(j)
	}},
	{"endpoint", "connect", func(w *world, url string) uuid.UUID {
		j, _ := w.rate(devnet.Feedback{AgentID: w.registerURI("data:application/json," + neturl.PathEscape(string(asJSON(at(url)))))})
		return w.accept(j)
	}},
	{"endpoint of the job's own", "connect", func(w *world, url string) uuid.UUID {
		j, _ := w.rate(devnet.Feedback{AgentID: w.register(nil)})
		return w.accept(with(j, own(url, map[string]any{"X-Key": "hunter2hunter2"})))
	}},
	{"feedback URI", "fetch", func(w *world, url string) uuid.UUID {
		j, _ := w.rate(devnet.Feedback{AgentID: w.register(nil), URI: url})
		return w.accept(with(j, own("https://127.0.0.1/never/called", nil)))
	}},
}

// blocked delivers, and checks that the guard blocked it in the step that uses the URL. It returns the error.
func (w *world) blocked(k *worker, id uuid.UUID, stage string) string {
	w.t.Helper()
	_, err := k.deliver(w.t.Context(), id, 1)
	d := w.shows(id, outcome.Rejected, outcome.AddressBlocked, 1)
	if err == nil || len(d.History) != 1 || d.History[0].Stage != stage {
		w.t.Errorf("%v, history %+v; want it blocked in step %s", err, d.History, stage)
	}
	return d.Error
}

// TestInwardAddresses: no URL of an untrusted party makes a worker connect to this machine, its network or its cloud's
// metadata service, at any place. The guard has no exceptions. Its own tests try each spelling of an address.
func TestInwardAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	inner := guardtest.Listen(t, "127.0.0.1")
	port, addr := inner.Addr.Port(), netip.MustParseAddr
	// The tripwire's port is allowed, so that only the address can be blocked.
	k := w.guarded(t, netguard.Config{Ports: []uint16{80, 443, port}, AllowHTTP: true, Resolver: guardtest.Resolver(t, map[string][][]netip.Addr{
		"inward.test":  {{addr("127.0.0.1")}},
		"several.test": {{addr("10.0.0.1"), addr("127.0.0.1"), addr("::1"), addr("192.168.1.1")}},
	})})
	for _, p := range urlPositions {
		for _, url := range []string{
			fmt.Sprintf("https://127.0.0.1:%d/", port), fmt.Sprintf("HTTPS://LocalHost:%d/", port), fmt.Sprintf("https://[::ffff:7f00:1]:%d/", port),
			"https://127.0.0.1", fmt.Sprintf("http://127.0.0.1:%d/", port), "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
			fmt.Sprintf("https://inward.test:%d/agent.json", port), fmt.Sprintf("http://inward.test:%d/", port), fmt.Sprintf("https://several.test:%d/", port),
		} {
			w.run(t, p.name+" "+url, func(t *testing.T, w *world) {
				w.blocked(k, p.put(w, url), p.stage)
			})
		}
	}
	heraldtest.Equal(t, "connections inward", inner.Connections(), 0)
}

// TestIndirectInwardAddresses: a first request to a permitted server leads to a forbidden address, at each place. Here
// 127.0.0.9 represents the internet and is allowed. All other addresses of this machine stay forbidden. The guard's own
// tests redirect in other ways too, and resolver.TestBindingIsAskedThroughTheGuard does so for the file of a domain.
func TestIndirectInwardAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	inner := guardtest.Listen(t, "127.0.0.1")
	out, in := netip.MustParseAddr("127.0.0.9"), inner.Addr.Addr()
	a := &agent{schema: `{"type":"object"}`, tool: "agent.receiveFeedback"}
	var rebound atomic.Bool
	mux := http.NewServeMux()
	mux.Handle("/inward", http.RedirectHandler("http://"+inner.Addr.String()+"/secret", http.StatusTemporaryRedirect))
	// The next connection resolves the same name to another address.
	mux.HandleFunc("/rebind", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Connection", "close")
		if r.Method == http.MethodPost { // the endpoint
			rebound.Store(true)
			a.ServeHTTP(rw, r)
			return
		}
		http.Redirect(rw, r, "/rebind", http.StatusFound)
	})
	srv := httptest.NewUnstartedServer(mux)
	ln, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Skip("127.0.0.9 is not this machine's: ", err)
	}
	srv.Listener = ln
	srv.Start()
	t.Cleanup(srv.Close)
	outside := ln.Addr().String()

	// A new resolver for each delivery, because a rebinding one counts its calls.
	worker := func(t *testing.T) *worker {
		return w.in(t).guarded(t, netguard.Config{AllowNetworks: []netip.Prefix{netip.PrefixFrom(out, 32)}, Ports: []uint16{80, 443, inner.Addr.Port()},
			Resolver: guardtest.Resolver(t, map[string][][]netip.Addr{"rebind.test": {{out}, {in}}})})
	}
	for _, p := range urlPositions {
		for name, url := range map[string]string{
			"redirect":           "http://" + outside + "/inward",
			"rebinding resolver": fmt.Sprintf("http://rebind.test:%d/rebind", netip.MustParseAddrPort(outside).Port()),
		} {
			t.Run(p.name+"/"+name, func(t *testing.T) {
				w := w.in(t) // the blocked address is the inner one, so the hop before it was made
				heraldtest.Contains(t, "the error", w.blocked(worker(t), p.put(w, url), p.stage), "127.0.0.1:")
			})
		}
	}
	heraldtest.Equal(t, "the rebinding row gets past the first connection", rebound.Load(), true)

	// An authorization server names a token endpoint, which would receive the client's secret.
	t.Run("token endpoint", func(t *testing.T) {
		w, base := w.in(t), "http://"+outside
		answer := func(path string, status int, body any) {
			mux.HandleFunc(path, func(rw http.ResponseWriter, _ *http.Request) {
				rw.Header().Set("WWW-Authenticate", "Bearer")
				rw.WriteHeader(status)
				_, _ = rw.Write(asJSON(body))
			})
		}
		answer("/protected", http.StatusUnauthorized, "no")
		answer("/.well-known/oauth-protected-resource/protected", http.StatusOK,
			map[string]any{"resource": base + "/protected", "authorization_servers": []string{base}})
		answer("/.well-known/oauth-authorization-server", http.StatusOK,
			map[string]any{"issuer": base, "token_endpoint": "http://" + inner.Addr.String() + "/token"})
		id := w.register(at(base + "/protected"))
		w.authorize(id, base+"/protected", base, oauth.Credential{Grant: oauth.GrantClientCredentials, ClientID: "herald", Method: oauth.MethodBasic,
			Secret: secret.New(canary), Resource: base + "/protected"})
		d := w.accept(w.feedback(id))
		worker(t).mustDeliver(d, 1, "held auth_required")
		w.shows(d, outcome.Held, outcome.AuthRequired, 0, "127.0.0.1:")
	})
	heraldtest.Equal(t, "connections inward", inner.Connections(), 0)
}
