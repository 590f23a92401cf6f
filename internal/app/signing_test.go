package app

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall/signing"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/keys"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/receiver/callers"
	"github.com/google/uuid"
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
	for i := range 8 {
		w := []*Worker{first, second}[i%2]
		delivered(t, w.Store, accept(t, w, feedback(t, net, self)))
	}
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

// TestForgedFeedback checks that clients with an API token of scope enqueue or direct cannot forge a feedback, although
// a deliveryId can be computed from public data. An agent that verifies signatures receives a feedback with that id
// only from the delivery.
func TestForgedFeedback(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	front := httptest.NewUnstartedServer(nil)
	t.Cleanup(front.Close)
	publicURL := "http://" + front.Listener.Addr().String()
	a, self := verifyingAgent(t, publicURL, http.NotFound)
	r := run(t, false, workerEnv(t, net, "HERALD_API_TOKEN=canary-466f7267",
		"HERALD_PUBLIC_URL="+publicURL)...)
	to, _ := url.Parse("http://" + r.listen)
	front.Config.Handler = httputil.NewSingleHostReverseProxy(to)
	front.Start()
	w := r.up()
	newToken := func(scopes ...operator.Scope) string {
		var names []string
		for _, s := range scopes {
			names = append(names, string(s))
		}
		made, err := w.Operator.CreateAPIToken(t.Context(), "an enqueuer", names, 0, "test")
		heraldtest.Must(t, err)
		return made.Token
	}
	enqueue, direct := newToken(operator.ScopeEnqueue), newToken(operator.ScopeDirect)
	both := newToken(operator.ScopeEnqueue, operator.ScopeDirect)

	line := feedback(t, net, self)
	parsed, err := job.Parse(line, job.Limits{})
	heraldtest.Must(t, err)
	forgedJob := map[string]any{}
	heraldtest.Must(t, json.Unmarshal(line, &forgedJob))
	forgedJob["action"] = map[string]any{"payloadTemplate": map[string]any{"score": 0, "tag1": "scam"}}
	ofOthers := maps.Clone(forgedJob)
	ofOthers["action"] = map[string]any{"toolName": "agent.receiveFeedbackBatch",
		"payloadTemplate": map[string]any{"deliveries": []any{map[string]any{"score": 0, "deliveryId": uuid.NewString()}}}}
	call := func(tool string, arguments map[string]any) map[string]any {
		return map[string]any{"endpoint": self, "tool_name": tool, "arguments": arguments}
	}
	id := parsed.ID().String()
	forged := map[string]any{"score": 0, "tag1": "scam", "deliveryId": id}
	unnamed := map[string]any{"score": 0, "tag1": "scam"}
	forge := func(when string, calls int) {
		t.Helper()
		for name, c := range map[string]struct {
			token, path string
			body        any
			status      int
		}{
			"enqueue, direct call":         {enqueue, "/mcp/call", call("agent.receiveFeedback", forged), 403},
			"enqueue, job with a template": {enqueue, "/v1/jobs", forgedJob, 403},
			"direct, job with a template":  {direct, "/v1/jobs", forgedJob, 403},
			"both, template with an id":    {both, "/v1/jobs", ofOthers, 400},
			"direct, deliveryId":           {direct, "/mcp/call", call("agent.receiveFeedback", forged), 400},
			"direct, deliveryId in a batch": {direct, "/mcp/call",
				call("agent.receiveFeedbackBatch", map[string]any{"deliveries": []any{forged}}), 400},
			"direct, without deliveryId": {direct, "/mcp/call", call("agent.receiveFeedback", unnamed), 502},
		} {
			if status, body := r.ask(http.MethodPost, c.token, c.path, c.body); status != c.status {
				t.Errorf("%s, %s: %d %s", when, name, status, body)
			}
		}
		heraldtest.Equal(t, when+": calls", a.count(), calls)
	}
	forge("before the delivery", 0)
	heraldtest.Equal(t, "the id", accept(t, w, line).String(), id)
	delivered(t, w.Store, parsed.ID())
	forge("after the delivery", 1) // by then, the worker has a client that signs
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
