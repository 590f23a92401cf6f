package app

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/keys"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/receiver/callers"
)

// verifyingAgent starts an agent that takes only requests that a Herald has signed, and returns its URL. lookup answers
// requests for its registration.
func verifyingAgent(t *testing.T, herald string, lookup http.HandlerFunc) (a *agent, self string) {
	t.Helper()
	a = openAgent(t)
	srv := httptest.NewUnstartedServer(nil)
	t.Cleanup(srv.Close)
	self = "http://" + srv.Listener.Addr().String()
	verifier, err := callers.New(callers.Config{Herald: herald, Self: self})
	heraldtest.Must(t, err)
	guarded := http.NewServeMux()
	guarded.HandleFunc("/.well-known/", lookup)
	guarded.Handle("/", verifier.Require(a))
	srv.Config.Handler = guarded
	srv.Start()
	return a, self
}

// TestSignedDeliveries checks that two workers on one database, behind a proxy, sign with the same key and publish the
// same directory without authentication. An agent that accepts only this Herald gets its deliveries. A new key is
// published without a restart.
func TestSignedDeliveries(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	var workers []*httputil.ReverseProxy
	var turn atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		workers[int(turn.Add(1))%len(workers)].ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)

	var looked atomic.Int32
	a, self := verifyingAgent(t, front.URL, func(w http.ResponseWriter, r *http.Request) { // requests for an agent's registration are not signed
		if looked.Add(1); r.Header.Get("Signature") != "" || r.Header.Get("Signature-Agent") != "" {
			t.Errorf("%s is signed", r.URL)
		}
		http.NotFound(w, r)
	})

	const token = "canary-5369676e"
	env := workerEnv(t, net, "HERALD_API_TOKEN="+token, "HERALD_PUBLIC_URL="+front.URL)
	both := []*running{run(t, false, env...), run(t, false, env...)}
	for _, r := range both {
		to, _ := url.Parse("http://" + r.listen)
		workers = append(workers, httputil.NewSingleHostReverseProxy(to))
	}
	first, second := both[0].up(), both[1].up()
	caller, err := first.Operator.CreateAPIToken(t.Context(), "a caller", []string{string(operator.ScopeDirect)}, 0, "test")
	heraldtest.Must(t, err)
	callDirectly := func() { // so that nobody can forge feedback with the id of a delivery, which is public
		t.Helper()
		call := map[string]any{"endpoint": self, "tool_name": "agent.receiveFeedback", "arguments": map[string]any{"score": 0, "tag1": "scam"}}
		for _, r := range both {
			status, body := r.ask(http.MethodPost, caller.Token, "/mcp/call", call)
			heraldtest.Equal(t, "an unsigned call: "+body, status, http.StatusBadGateway)
		}
	}
	callDirectly()
	for i := range 8 {
		w := []*Worker{first, second}[i%2]
		delivered(t, w.Store, accept(t, w, feedback(t, net, self)))
	}
	callDirectly() // by now, both workers have a client that signs
	if n := a.count(); n != 8 || looked.Load() == 0 {
		t.Errorf("%d calls, %d looks at its registration", n, looked.Load())
	}

	ask := func(r *running, path, host string) (int, string, http.Header) {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.listen+path, nil)
		req.Host = host
		res, err := http.DefaultClient.Do(req)
		heraldtest.Must(t, err)
		defer func() { _ = res.Body.Close() }()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(body), res.Header
	}
	_, directory, _ := ask(both[0], signing.DirectoryPath, "")
	for _, r := range both {
		code, body, header := ask(r, signing.DirectoryPath, "herald.example")
		if code != 200 || body != directory || header.Get("Content-Type") != signing.DirectoryType || strings.Count(body, `"kid"`) != 1 {
			t.Errorf("the directory: %d %s, the other's %s", code, body, directory)
		}
		if code, _, _ := ask(r, "/v1/deliveries", "127.0.0.1"); code != http.StatusUnauthorized {
			t.Errorf("the rest is open: %d", code)
		}
	}

	made, err := keys.RotateSigning(t.Context(), first.Operator, time.Hour, 24*time.Hour, "test")
	heraldtest.Must(t, err)
	list, err := keys.ListSigning(t.Context(), second.Operator)
	if err != nil || len(list) != 2 || list[0].ID != made.ID || list[0].State != keys.Next ||
		list[1].State != keys.Signs || list[1].RetiresAt == nil || !strings.Contains(directory, list[1].ID) {
		t.Errorf("%+v, %v", list, err)
	}
	for _, r := range both {
		heraldtest.Must(t, r.stop())
		heraldtest.Lacks(t, "the log", r.log.String(), "sig1=", token)
	}
	// A worker that starts now loads both keys at once, and signs with the old one.
	r := run(t, false, env...)
	w := r.up()
	_, directory, _ = ask(r, signing.DirectoryPath, "")
	var set struct{ Keys []struct{ Kid string } }
	if err := json.Unmarshal([]byte(directory), &set); err != nil || len(set.Keys) != 2 {
		t.Errorf("%s, %v", directory, err)
	}
	to, _ := url.Parse("http://" + r.listen)
	workers = []*httputil.ReverseProxy{httputil.NewSingleHostReverseProxy(to)}
	delivered(t, w.Store, accept(t, w, feedback(t, net, self)))
}

// TestSigningNeedsItsKey checks that a worker whose keyset does not contain the key of the signing key refuses to
// start. Otherwise, it would send unsigned calls, and agents would refuse them for good.
func TestSigningNeedsItsKey(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	env := workerEnv(t, net, "HERALD_PUBLIC_URL=https://herald.example")
	r := run(t, false, env...)
	r.up()
	heraldtest.Must(t, r.stop())
	other := run(t, false, append(env, "HERALD_KEYSET="+heraldtest.Keyset(t))...)
	heraldtest.Fails(t, "the start", other.wait(), "signing-key rotate", "HERALD_KEYSET")
}
