package delivery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// canary is part of each token of these tests. It may appear only in requests that the agents received.
const canary = "canary-4c6f7264"

// recorder is an agent that records the headers of all requests, and can require a token.
type recorder struct {
	*agent
	mu    sync.Mutex
	seen  []http.Header
	wants [2]string // required header and value; "": none
}

func newRecorder(t testing.TB, header, value string) *recorder {
	t.Helper()
	r := &recorder{wants: [2]string{header, value}}
	r.agent = newAgent(t, onAny(func(_ string, w http.ResponseWriter, req *http.Request, _ json.RawMessage) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen = append(r.seen, req.Header.Clone())
		if r.wants[0] != "" && req.Header.Get(r.wants[0]) != r.wants[1] {
			http.Error(w, "no", http.StatusUnauthorized)
			return true
		}
		return false
	}))
	return r
}

func (r *recorder) requests() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

func (r *recorder) takes(header, value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wants = [2]string{header, value}
}

// got reports whether a text was received in any header.
func (r *recorder) got(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.seen {
		var b bytes.Buffer
		_ = h.Write(&b)
		if strings.Contains(b.String(), text) {
			return true
		}
	}
	return false
}

// token stores a token for an agent, as `worker token set` does.
func (w *world) token(id *big.Int, rawURL, scheme, header, plain string, adapt ...func(*records.Token)) (released int) {
	w.t.Helper()
	t := records.Token{Agent: w.agentOf(id), Origin: must(netguard.CredentialOriginOf(rawURL)), Path: auth.CredentialPath(rawURL), Scheme: scheme, Header: header}
	for _, f := range adapt {
		f(&t)
	}
	t.Ciphertext = must(w.keys.Seal([]byte(plain), t.Binding()))
	ctx := heraldtest.Within(w.t, 20*time.Second)
	released, tasks, err := records.New(w.store).SetToken(ctx, t)
	heraldtest.Must(w.t, err)
	w.dispatcher.Dispatch(ctx, tasks)
	return released
}

func (w *world) bearer(id *big.Int, rawURL string) int {
	return w.token(id, rawURL, records.SchemeBearer, "Authorization", canary)
}

// credentialed returns a worker that uses stored tokens.
func (w *world) credentialed(adapt ...func(*auth.Config)) *worker {
	w.t.Helper()
	cfg := auth.Config{Ledger: w.store, Records: records.New(w.store), Keys: w.keys, Classify: classify.Error,
		OAuth: must(oauth.New(oauth.Config{HTTP: &http.Client{Transport: http.DefaultTransport}}))}
	for _, f := range adapt {
		f(&cfg)
	}
	return w.newWorker(func(c *Config) { c.Authorizer = must(auth.New(cfg)) })
}

// heldFor waits until a delivery is held because a credential is missing, with the given text in its error.
func (w *world) heldFor(id uuid.UUID, says string) ledger.Delivery {
	w.t.Helper()
	return w.ends(id, outcome.Held, outcome.AuthRequired, 0, says)
}

func TestStoredTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := newOperator(w)
	k := w.credentialed()
	k.executor.Servers = o.server
	w.serve(k)

	w.runParallel(t, "held, and released in order", func(t *testing.T, w *world) {
		a := newRecorder(t, "Authorization", "Bearer "+canary)
		id := w.register(at(a.URL))
		ids := []uuid.UUID{w.accept(w.feedback(id))}
		w.heldFor(ids[0], "401")
		asked := a.requests()
		for range 5 {
			ids = append(ids, w.accept(w.feedback(id)))
			w.heldFor(ids[len(ids)-1], "(HTTP 401 or 403) and is not asked again for ")
		}
		heraldtest.Equal(t, "requests", a.requests(), asked)
		heraldtest.Equal(t, "the agent's state", w.agentRow(id).State, records.StateNeedsAuth)
		heraldtest.Equal(t, "released", w.token(id, a.URL, records.SchemeBearer, "Authorization", "another one"), 6)
		for _, d := range ids {
			w.heldFor(d, "")
		}
		heraldtest.Equal(t, "released", w.bearer(id, a.URL), 6)
		for _, d := range ids {
			w.until(d, outcome.Delivered)
		}
		if r := w.agentRow(id); r.State != records.StateConnected || r.Epoch != 2 {
			t.Errorf("%+v", r)
		}
	})

	w.runParallel(t, "a replay asks all the same", func(t *testing.T, w *world) {
		a := newRecorder(t, "X-Key", canary)
		id := w.register(at(a.URL))
		d := w.accept(w.feedback(id))
		w.heldFor(d, "401")
		waits := w.accept(w.feedback(id))
		w.heldFor(waits, "is not asked again")
		a.takes("", "") // it no longer requires a token
		w.replay(d, false)
		w.until(d, outcome.Delivered)
		w.until(waits, outcome.Delivered) // released because the agent accepts calls
	})

	w.runParallel(t, "other headers and other places get none", func(t *testing.T, w *world) {
		a := newRecorder(t, "", "")
		id := w.register(nil)
		w.bearer(id, a.URL+"/mcp")
		for _, action := range []map[string]any{own(a.URL+"/mcp", map[string]any{"X-Own": "mine"}), own(a.URL+"/mcp/below", nil)} {
			w.until(w.accept(with(w.feedback(id), action)), outcome.Delivered)
		}
		o.say(id, map[string]any{"url": a.URL + "/mcp", "headers": map[string]string{"X-File": "filed"}})
		w.until(w.accept(w.feedback(id)), outcome.Delivered)
		if a.got(canary) || !a.got("mine") || !a.got("filed") {
			t.Error("a job's or the servers file's headers do not win, or a token goes where a job says")
		}
		o.say(id, map[string]any{"url": a.URL + "/mcp"})
		w.until(w.accept(w.feedback(id)), outcome.Delivered)
		heraldtest.Equal(t, "a listed endpoint gets the token", a.got("Bearer "+canary), true)
	})

	t.Cleanup(func() { w.noCanary(k) })
}

// TestTokensStayAtTheirServer: the registered URL leads elsewhere than the token's. The other server gets no token, and
// the token's own server is not called either. TestTokensKeepTheirPath tries each spelling.
func TestTokensStayAtTheirServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.credentialed()
	w.serve(k)
	for name, tt := range map[string]struct {
		stored, now string // paths; the origin of a stored token is that of the agent
		moved       bool   // what is registered is at another origin
	}{"another origin": {"", "", true}, "a path that is read in two ways": {"/victim", "/victim/..%2fevil", false}} {
		w.runParallel(t, name, func(t *testing.T, w *world) {
			a, evil := newRecorder(t, "", ""), newRecorder(t, "", "")
			now := a.URL
			if tt.moved {
				now = evil.URL
			}
			id := w.register(at(now + strings.ReplaceAll(tt.now, "%", "%25"))) // in a data: URI
			w.bearer(id, a.URL+tt.stored)
			w.ends(w.accept(w.feedback(id)), outcome.Held, outcome.AuthRequired, 0, "the agent moved: it is at "+now,
				fmt.Sprintf("`worker token set %d:%s --origin ", w.net.ChainID(), id))
			heraldtest.Equal(t, "requests to the right server and to the other one", []int{a.requests(), evil.requests()}, []int{0, 0})
		})
	}
	// mcpcall tests the other redirects, and an event stream that names another server.
	w.runParallel(t, "a redirect", func(t *testing.T, w *world) {
		evil := newRecorder(t, "", "")
		var sent atomic.Bool
		a := newAgent(t, onAny(func(_ string, rw http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
			sent.Store(sent.Load() || r.Header.Get("Authorization") == "Bearer "+canary)
			http.Redirect(rw, r, evil.URL, http.StatusTemporaryRedirect)
			return true
		}))
		id := w.register(at(a.URL))
		w.bearer(id, a.URL)
		w.until(w.accept(w.feedback(id)), outcome.Rejected)
		if evil.requests() > 0 || !sent.Load() {
			t.Errorf("%d requests to the other server", evil.requests())
		}
	})
	t.Cleanup(func() { w.noCanary(k) })
}

// TestForbiddenCalls: an agent refuses one delivery with 403, perhaps because of its content, and accepts the others. The
// refused delivery is released by the first success. If it is refused again, later successes do not release it.
func TestForbiddenCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.credentialed())
	for name, c := range map[string]struct {
		refusals int // of the first delivery
		want     outcome.Status
	}{"once": {1, outcome.Delivered}, "always": {math.MaxInt, outcome.Held}} {
		w.runParallel(t, name, func(t *testing.T, w *world) {
			var mu sync.Mutex
			bad, forbidden := "", 0
			a := newAgent(t, onCall(func(_ int, rw http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
				params, _ := r.Context().Value(paramsKey{}).(string)
				var call struct{ Arguments struct{ DeliveryID string } }
				_ = json.Unmarshal([]byte(params), &call)
				mu.Lock()
				defer mu.Unlock()
				if bad == "" {
					bad = call.Arguments.DeliveryID
				}
				if call.Arguments.DeliveryID != bad || forbidden >= c.refusals {
					return false
				}
				forbidden++
				http.Error(rw, "I do not like these words", http.StatusForbidden)
				return true
			}))
			id := w.register(at(a.URL))
			first := w.accept(w.feedback(id))
			w.ends(first, outcome.Held, outcome.AuthRequired, 1)
			for range 5 {
				w.until(w.accept(w.feedback(id)), outcome.Delivered)
			}
			w.until(first, c.want)
			mu.Lock()
			defer mu.Unlock()
			if forbidden > 2 {
				t.Errorf("the agent was asked %d times about what it forbids", forbidden)
			}
		})
	}
}

// TestEndpointOfJobSaysNothingOfTheAgent: calls at an endpoint that a job names leave the agent's row unchanged.
func TestEndpointOfJobSaysNothingOfTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	healthy, stranger := newRecorder(t, "", ""), newAgent(t, status(http.StatusServiceUnavailable))
	id := w.register(at(healthy.URL + "/mcp"))
	key := w.agentOf(id)
	w.until(w.accept(with(w.feedback(id), own(stranger.URL+"/mcp", nil))), outcome.Waiting)
	if row := must(records.New(w.store).AgentRow(t.Context(), key)); row.State != records.StatePending || row.Endpoint != "" || row.LastError != "" || row.FailingSince != nil {
		t.Errorf("after a failure at a stranger's endpoint: %+v", row)
	}
	dead := w.register(at(stranger.URL + "/dead"))
	w.until(w.accept(with(w.feedback(dead), own(healthy.URL+"/mcp", nil))), outcome.Delivered)
	if row := must(records.New(w.store).AgentRow(t.Context(), w.agentOf(dead))); row.State != records.StatePending || row.LastOKAt != nil || row.Endpoint != "" || len(row.Tools) > 0 {
		t.Errorf("after a success at a stranger's endpoint: %+v", row)
	}
}

// noCanary looks for the tokens everywhere that is not the agents.
func (w *world) noCanary(k *worker) {
	w.t.Helper()
	ctx := heraldtest.Within(w.t, 60*time.Second)
	look := func(where, text string) {
		if i := strings.Index(text, canary); i >= 0 {
			w.t.Errorf("%s tells a token: …%.200q", where, text[max(i-100, 0):])
		}
	}
	look("the log", w.log.String())
	k.mu.Lock()
	for _, s := range k.steps {
		look("a step", s.Detail)
	}
	k.mu.Unlock()
	conn := w.connect()
	for _, table := range []string{"deliveries", "attempts", "agents", "audit", "agent_mcp_tokens", "agent_mcp_access", "chain_cursors", "hints"} {
		rows := must(conn.Query(ctx, `SELECT t::text FROM herald.`+table+` t`))
		for _, text := range must(pgx.CollectRows(rows, pgx.RowTo[string])) {
			look("table "+table, text)
			look("table "+table, strings.ReplaceAll(text, fmt.Sprintf("%x", canary), canary)) // a bytea
		}
	}
	rdb := w.queue.Client(5 * time.Second)
	defer func() { _ = rdb.Close() }()
	keys := rdb.Scan(ctx, 0, "*", 1000).Iterator()
	for n := 0; keys.Next(ctx); n++ {
		look("a Redis key", keys.Val())
		if dump, err := rdb.Dump(ctx, keys.Val()).Result(); err == nil {
			look("Redis", dump)
		}
	}
	if err := keys.Err(); err != nil {
		w.t.Error(err)
	}
}
