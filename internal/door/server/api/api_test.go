package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/door/server/pages"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/uuid"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

const ownToken = "the token of HERALD_API_TOKEN"

// world is an API with its own database behind the real server. Every answer is checked against the OpenAPI document.
type world struct {
	calls *toolCaller
	*testing.T
	store    *store.Store
	intake   *intake.Intake
	operator *operator.Operator
	base     string
	routes   []server.Route
	token    string        // HERALD_API_TOKEN
	cutOff   func()        // ends the server and its connections, like a killed process
	gone     chan struct{} // closed by cutOff
	document *openapi3.T
	router   routers.Router
}

// lent is the operator's backend: the test's store, without a chain.
type lent struct {
	store *store.Store
	guard *netguard.Guard
}

func (b lent) OpenStore(context.Context, operator.StoreOptions) (*operator.Session, error) {
	return &operator.Session{Ledger: b.store, Records: records.New(b.store), Close: func() {}}, nil
}

func (b lent) OpenContent() (*operator.Content, error) {
	return &operator.Content{Guard: b.guard, HasChain: func(uint64) bool { return false }, Close: func() {}}, nil
}
func (lent) Keyset() (*secret.Keyset, error) { return nil, errors.New("no keyset here") }
func (lent) Master() (secret.Master, error)  { return nil, nil }
func (lent) DataDir() string                 { return "" }

type nobody struct{}

func (nobody) Confirm(context.Context, string) (bool, error) { return false, operator.ErrNoPerson }
func (nobody) Notify(string)                                 {}

func newWorld(t *testing.T) *world { t.Helper(); return serveWorld(t, openStore(t, false)) }

func openStore(t *testing.T, strictOrder bool) *store.Store {
	t.Helper()
	st := storetest.Open(t, heraldtest.Postgres(t, postgres.Migrate), 8)
	st.StrictOrder = strictOrder
	return st
}

func serveWorld(t *testing.T, st *store.Store) *world { t.Helper(); return serveWith(t, st, ownToken) }

func serveWith(t *testing.T, st *store.Store, token string) *world {
	t.Helper()
	cfg, err := config.Load(nil)
	heraldtest.Must(t, err)
	quiet := slog.New(slog.DiscardHandler)
	keys, err := secret.Create()
	heraldtest.Must(t, err)
	in, err := intake.New(intake.Config{Ledger: st, Sealer: keys, Limits: job.Limits{MaxTimeout: cfg.CallTimeout}, Logger: quiet})
	heraldtest.Must(t, err)
	w := &world{T: t, store: st, intake: in, token: token, gone: make(chan struct{}), calls: &toolCaller{}}
	w.operator = operator.New(operator.Config{Settings: cfg, Backend: lent{st, guardtest.Loopback(t, nil)}, Person: nobody{}, Logger: quiet, Timeout: 10 * time.Second})
	a, err := api.New(api.Config{Operator: w.operator, Intake: in, Events: records.New(st), Calls: w.calls, Logger: quiet,
		PollEvents: 10 * time.Millisecond})
	heraldtest.Must(t, err)
	web, err := server.New(server.Config{Listen: "127.0.0.1:0", Token: secret.New(token), Logger: quiet,
		LoadCallers: w.operator.LoadCallers, Metrics: http.NotFoundHandler(),
		Ready: func() (waiting, degraded map[string]string) { return nil, nil }})
	heraldtest.Must(t, err)
	html, err := pages.New(pages.Config{Operator: w.operator, Logger: quiet})
	heraldtest.Must(t, err)
	mounted := slices.Concat(html.Routes(), a.Routes())
	w.routes = web.Routes(http.NotFoundHandler(), mounted)
	web.Mount(http.NotFoundHandler(), mounted)
	w.base = "http://" + web.Addr()
	w.cutOff = sync.OnceFunc(func() {
		defer close(w.gone)
		stop, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		if err := web.Shutdown(stop); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ran
		w.cutOff()
		http.DefaultClient.CloseIdleConnections()
	})
	w.loadDocument()
	return w
}

func (w *world) loadDocument() {
	w.Helper()
	res := w.send("GET", "/v1/openapi.json", w.token, "", nil)
	body, err := io.ReadAll(res.Body)
	heraldtest.Must(w, err)
	w.document, err = openapi3.NewLoader().LoadFromData(body)
	heraldtest.Must(w, err)
	heraldtest.Equal(w, "integers of 64 bits", strings.Count(string(body), `"int64"`), strings.Count(string(body), `"integer"`))
	if err = w.document.Validate(w.Context()); err != nil {
		w.Fatalf("the OpenAPI document: %v", err)
	}
	for name, schema := range w.document.Components.Schemas {
		if closed := closeObjects(schema); closed != slices.Contains(bodies, name) {
			w.Errorf("the document forbids further members of %s: %t", name, closed)
		}
	}
	w.document.Servers = openapi3.Servers{{URL: w.base}}
	w.router, err = gorillamux.NewRouter(w.document)
	heraldtest.Must(w, err)
}

// send sends a request. The test's cleanup closes the body.
func (w *world) send(method, path, token, mediaType string, body io.Reader, edits ...func(*http.Request)) *http.Response {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, w.base+path, body)
	heraldtest.Must(w, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if mediaType != "" {
		r.Header.Set("Content-Type", mediaType)
	}
	for _, edit := range edits {
		edit(r)
	}
	res, err := http.DefaultClient.Do(r)
	heraldtest.Must(w, err)
	w.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// streamJobs begins a stream of jobs with a line, and returns the answer, which has begun, and the rest of the stream.
func (w *world) streamJobs(token, line string) (*http.Response, io.WriteCloser) {
	w.Helper()
	body, feed := io.Pipe()
	w.Cleanup(func() { _ = feed.Close() })
	answered := make(chan *http.Response, 1)
	go func() { answered <- w.send("POST", "/v1/jobs", token, "application/x-ndjson", body) }()
	fmt.Fprintln(feed, line)
	return heraldtest.Receive(w, "the head of the answer", answered), feed
}

// call sends a request with all scopes, checks the status and that the OpenAPI document describes the answer, and
// decodes it.
func call[T any](w *world, want int, method, path, body string) (answer T) {
	w.Helper()
	return callAs[T](w, ownToken, want, method, path, "application/json", body)
}

func callAs[T any](w *world, token string, want int, method, path, mediaType, body string) (answer T) {
	w.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	res := w.send(method, path, token, mediaType, in)
	raw, err := io.ReadAll(res.Body)
	heraldtest.Must(w, err)
	if res.StatusCode != want {
		w.Fatalf("%s %s: %d, want %d: %s", method, path, res.StatusCode, want, raw)
	}
	w.checkAnswer(res, raw)
	if want < 300 && body != "" && mediaType == "application/json" {
		w.checkRequest(res.Request, body)
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		w.Fatalf("%s %s: %v in %s", method, path, err, raw)
	}
	return answer
}

// jobOf returns a job of agent 8453:<agent>.
func jobOf(agent, index int) string {
	return fmt.Sprintf(`{"type":"NewFeedback","chainId":8453,"agentId":"%d","clientAddress":"0x%040x","feedbackIndex":%d,"value":"99",`+
		`"valueDecimals":0,"transactionHash":"0x%064x"}`, agent, agent, index, index)
}

// enqueue enqueues jobOf(agent, index), and returns its delivery's id.
func (w *world) enqueue(agent, index int) string {
	w.Helper()
	return call[api.JobAnswer](w, 202, "POST", "/v1/jobs", jobOf(agent, index)).ID
}

// record records the outcome of a delivery's first attempt.
func (w *world) record(id string, o ledger.Outcome) {
	w.Helper()
	c, err := w.store.Claim(w.Context(), uuid.MustParse(id), 1, time.Minute)
	heraldtest.Must(w, err)
	_, err = w.store.Record(w.Context(), c, o)
	heraldtest.Must(w, err)
}

// delivery returns the delivery with an id.
func (w *world) delivery(id string) operator.Delivery {
	w.Helper()
	return call[operator.Delivery](w, 200, "GET", "/v1/deliveries/"+id, "")
}

// agent returns agent 8453:<n>.
func (w *world) agent(n int) operator.Agent {
	w.Helper()
	return call[operator.Agent](w, 200, "GET", fmt.Sprint("/v1/agents/8453:", n), "")
}

func TestEnqueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := call[api.JobAnswer](w, 202, "POST", "/v1/jobs", jobOf(1, 1))
	if got.Verdict != ledger.Accepted || got.ID == "" || got.Status != outcome.Queued {
		t.Errorf("%+v", got)
	}
	if again := call[api.JobAnswer](w, 200, "POST", "/v1/jobs", jobOf(1, 1)); again.Verdict != ledger.Known || again.ID != got.ID {
		t.Errorf("%+v", again)
	}
	other := strings.Replace(jobOf(1, 1), `"99"`, `"98"`, 1)
	if c := call[api.JobAnswer](w, 409, "POST", "/v1/jobs", other); c.Error == nil || c.Error.Field != "value" || c.ID != got.ID {
		t.Errorf("%+v", c)
	}
	bad := strings.Replace(jobOf(1, 1), `"feedbackIndex":1`, `"feedbackIndex":0`, 1)
	if c := call[api.JobAnswer](w, 400, "POST", "/v1/jobs", bad); c.Error == nil || c.Error.Field != "feedbackIndex" {
		t.Errorf("%+v", c)
	}
	for name, c := range map[string]struct {
		want            int
		mediaType, body string
	}{
		"another media type": {415, "text/plain", jobOf(1, 2)},
		"none":               {415, "", jobOf(1, 2)},
		"too large":          {413, "application/json", `{"type":"` + strings.Repeat("x", 256<<10) + `"}`},
	} {
		if e := callAs[api.ErrorAnswer](w, ownToken, c.want, "POST", "/v1/jobs", c.mediaType, c.body); e.Error.Message == "" {
			t.Errorf("%s: %+v", name, e)
		}
	}
	for _, mediaType := range []string{"application/json", "application/x-ndjson"} {
		res := w.send("POST", "/v1/jobs", ownToken, mediaType, strings.NewReader("\x1f\x8b\b"),
			func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") })
		var e api.ErrorAnswer
		heraldtest.Must(t, json.NewDecoder(res.Body).Decode(&e))
		if res.StatusCode != http.StatusUnsupportedMediaType || !strings.Contains(e.Error.Message, `"gzip"`) ||
			res.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("a compressed %s: %s, %+v", mediaType, res.Status, e)
		}
	}
	// A request whose Content-Length exceeds the limit is refused before its body is read.
	body, feed := io.Pipe()
	defer feed.Close()
	res := w.send("POST", "/v1/jobs", ownToken, "application/json", body, func(r *http.Request) { r.ContentLength = 10 << 20 })
	heraldtest.Equal(t, "a large Content-Length", res.StatusCode, http.StatusRequestEntityTooLarge)
}

// TestNextStepNamesTheBlocker: a revocation waits for its feedback. Its next step names the feedback's delivery. If
// that delivery is held, the next step is the one that releases it.
func TestNextStepNamesTheBlocker(t *testing.T) {
	t.Parallel()
	w := serveWorld(t, openStore(t, true))
	feedback := w.enqueue(1, 1)
	revocation := call[api.JobAnswer](w, 202, "POST", "/v1/jobs", `{"type":"FeedbackRevoked","chainId":8453,"agentId":"1",`+
		`"clientAddress":"0x0000000000000000000000000000000000000001","feedbackIndex":1,"reason":"client"}`).ID
	waiting := w.delivery(revocation)
	heraldtest.Equal(t, "the reason", waiting.Reason, outcome.BehindEarlier)
	heraldtest.Contains(t, "the next step", waiting.NextStep, "nothing to do: delivery "+feedback+" of the same client")

	w.record(feedback, ledger.Outcome{Status: outcome.Held, Reason: outcome.AuthRequired, Stage: "call", Endpoint: "https://agent.example/mcp", Free: true})
	heraldtest.Contains(t, "the next step", w.delivery(revocation).NextStep, feedback, "held auth_required",
		"worker token set 8453:1")

	first, second := w.enqueue(2, 1), w.enqueue(2, 2)
	w.record(first, ledger.Outcome{Status: outcome.Waiting, Reason: outcome.Timeout, Stage: "call", Called: true, Delay: time.Hour})
	blocker := w.delivery(first)
	want := "which is waiting timeout, next attempt at " + blocker.NextAttemptAt.UTC().Format(time.RFC3339)
	if d := w.delivery(second); d.NextAttemptAt != nil || !strings.HasSuffix(d.NextStep, want) {
		t.Errorf("%v, %q, want %q", d.NextAttemptAt, d.NextStep, want)
	}
}

// TestTraceOfARequest: a delivery continues the trace of the request that enqueued it.
func TestTraceOfARequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	res := w.send("POST", "/v1/jobs", ownToken, "application/json", strings.NewReader(jobOf(1, 1)), func(r *http.Request) {
		r.Header.Set("traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	})
	var got api.JobAnswer
	heraldtest.Must(t, json.NewDecoder(res.Body).Decode(&got))
	heraldtest.Equal(t, "the trace", w.delivery(got.ID).TraceID, trace)
}

func TestEnqueueLines(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	res, feed := w.streamJobs(ownToken, jobOf(1, 1)) // each line is answered before the next one is sent
	lines := json.NewDecoder(res.Body)
	var got api.JobAnswer
	for i, line := range []string{"", "\n" + jobOf(1, 1), `{"type":"` + strings.Repeat("x", 300<<10) + `"}`, "no job", jobOf(2, 1)} {
		if i > 0 {
			fmt.Fprintln(feed, line)
		}
		got = api.JobAnswer{}
		heraldtest.Must(t, lines.Decode(&got))
		w.checkLine(got)
		want := []ledger.Verdict{ledger.Accepted, ledger.Known, intake.Refused, intake.Refused, ledger.Accepted}[i]
		heraldtest.Equal(t, fmt.Sprint("line ", i), got.Verdict, want)
	}
	if got.Line != 6 { // empty lines count
		t.Errorf("%+v", got)
	}
	_ = feed.Close()
	_, err := lines.Token()
	heraldtest.Fails(t, "after the last line", err, io.EOF)
}

func (w *world) checkLine(v any) {
	w.Helper()
	raw, err := json.Marshal(v)
	heraldtest.Must(w, err)
	var plain any
	heraldtest.Must(w, json.Unmarshal(raw, &plain))
	if err := w.document.Components.Schemas["JobAnswer"].Value.VisitJSON(plain, openapi3.EnableJSONSchema2020()); err != nil {
		w.Errorf("%v: %s", err, raw)
	}
}

func TestDeliveries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ids []string
	for i := range 5 {
		ids = append(ids, w.enqueue(1+i%2, i+1))
	}
	page := call[operator.DeliveryPage](w, 200, "GET", "/v1/deliveries?limit=2", "")
	if len(page.Deliveries) != 2 || page.Next == "" || page.Deliveries[0].ID.String() != ids[4] {
		t.Errorf("%+v", page)
	}
	page = call[operator.DeliveryPage](w, 200, "GET", "/v1/deliveries?limit=3&cursor="+page.Next, "")
	heraldtest.Equal(t, "deliveries", len(page.Deliveries), 3)
	heraldtest.Equal(t, "the next page", page.Next, "")
	one := w.delivery(ids[0])
	heraldtest.Equal(t, "the delivery of the key", w.delivery(strings.ReplaceAll(one.Key, "#", "%23")).ID, one.ID)
	for query, want := range map[string]int{
		"agent=8453:1": 3, "agent=8453:2": 2, "agent=1:1": 0, "status=queued": 5, "status=dead": 0, "kind=NewFeedback": 5,
		"kind=ResponseAppended": 0, "since=1h": 5, "until=1h": 0, "client=0x" + fmt.Sprintf("%040x", 1): 3,
		"transaction=0x" + fmt.Sprintf("%064X", 3): 1, "key=" + strings.ReplaceAll(one.Key, "#", "%23"): 1, "reason=timeout": 0,
	} {
		heraldtest.Equal(t, query,
			len(call[operator.DeliveryPage](w, 200, "GET", "/v1/deliveries?"+query, "").Deliveries), want)
	}
	for query, field := range map[string]string{"agent=x": "agent", "status=x": "status", "reason=x": "reason", "kind=x": "kind", "since=x": "since",
		"limit=0": "limit", "limit=1001": "limit", "limit=x": "limit", "cursor=x": "cursor", "client=0x12": "client", "transaction=12": "transaction",
		"reorged=1": "reorged", "since=1h&until=2h": "since", "endedSince=1h&status=held": "endedSince",
		"ended_since=1h": "ended_since", "agent=8453:1&agent=8453:2": "agent", "agent=8453:1;status=dead": ""} {
		if e := call[api.ErrorAnswer](w, 400, "GET", "/v1/deliveries?"+query, ""); e.Error.Field != field || strings.Contains(e.Error.Message, "--") {
			t.Errorf("%s: %+v", query, e)
		}
	}
	call[api.ErrorAnswer](w, 400, "GET", "/v1/deliveries/no-id", "")
	call[api.ErrorAnswer](w, 404, "GET", "/v1/deliveries/00000000-0000-4000-8000-000000000000", "")
}

func TestMoves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ids []string
	for i := range 5 {
		ids = append(ids, w.enqueue(1, i+1))
	}
	one := "/v1/deliveries/" + ids[0]
	if r := call[operator.MoveReport](w, 200, "POST", one+"/cancel", ""); r.Moved != 1 || r.Audit == 0 {
		t.Errorf("%+v", r)
	}
	call[api.ErrorAnswer](w, 409, "POST", one+"/cancel", "{}")
	move := func(path, body string) operator.MoveReport {
		t.Helper()
		return call[operator.MoveReport](w, 200, "POST", path, body)
	}
	heraldtest.Equal(t, "moved", move(one+"/replay", `{"force":true}`).Moved, 1)
	call[api.ErrorAnswer](w, 404, "POST", "/v1/deliveries/00000000-0000-4000-8000-000000000000/replay", "")
	call[api.ErrorAnswer](w, 400, "POST", "/v1/deliveries/no-id/replay", "")
	call[api.ErrorAnswer](w, 400, "POST", one+"/replay", `{"farce":true}`)
	callAs[api.ErrorAnswer](w, ownToken, 415, "POST", one+"/replay", "text/plain", `{}`)

	if r := move("/v1/deliveries/cancel", `{"agent":"8453:1","dryRun":true}`); !r.DryRun || r.Matched != 5 {
		t.Errorf("%+v", r)
	}
	heraldtest.Equal(t, "moved", move("/v1/deliveries/cancel", `{"agent":"8453:1","dryRun":false}`).Moved, 5)
	heraldtest.Equal(t, "moved",
		move("/v1/deliveries/replay", `{"status":"cancelled","dryRun":false,"rate":1000}`).Moved, 5)
	for body, field := range map[string]string{`{"agent":"8453:1"}`: "dryRun", `{"dryRun":true}`: "", `{"dryRun":true,"status":"x"}`: "status",
		`{"dryRun":true,"status":"delivered"}`: "status", `{"dryRun":true,"agent":"8453:1","rate":-1}`: "rate",
		`{"dryRun":true,"status":"dead","agent":""}`: "agent", `{"dryRun":true,"status":"dead","agent":null}`: "agent",
		`{"dryRun":true,"agent":"8453:1","dryRun":false}`: "dryRun", `{"dryRun":true,"agent":"8453:1"}}`: ""} {
		e := call[api.ErrorAnswer](w, 400, "POST", "/v1/deliveries/replay", body)
		heraldtest.Equal(t, body, e.Error.Field, field)
	}
	audit := call[operator.AuditPage](w, 200, "GET", "/v1/audit?limit=2", "")
	if len(audit.Audit) != 2 || audit.Next == "" || audit.Audit[0].Actor != "HERALD_API_TOKEN" || audit.Audit[0].Action != "replay" {
		t.Errorf("%+v", audit)
	}
}

func TestAgents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wrong := call[api.ErrorAnswer](w, 400, "GET", "/v1/agents/8453:1?registry=x", "")
	heraldtest.Equal(t, "the wrong parameter", wrong.Error.Field, "registry")
	for i := range 3 {
		w.enqueue(i+1, 1)
	}
	page := call[operator.AgentPage](w, 200, "GET", "/v1/agents?limit=2", "")
	if len(page.Agents) != 2 || page.Next == "" {
		t.Errorf("%+v", page)
	}
	page = call[operator.AgentPage](w, 200, "GET", "/v1/agents?chain=8453&cursor="+page.Next, "")
	heraldtest.Equal(t, "agents", len(page.Agents), 1)
	if a := w.agent(1); !a.Enabled || a.Open[outcome.Queued] != 1 {
		t.Errorf("%+v", a)
	}
	if c := call[operator.AgentChange](w, 200, "POST", "/v1/agents/8453:1/disable", ""); c.Audit == 0 || *c.Enabled {
		t.Errorf("%+v", c)
	}
	heraldtest.Equal(t, "the agent is enabled", w.agent(1).Enabled, false)
	call[operator.AgentChange](w, 200, "POST", "/v1/agents/8453:1/enable", "")
	before := w.agent(2).Epoch
	call[operator.AgentChange](w, 200, "POST", "/v1/agents/8453:2/refresh", "")
	heraldtest.Equal(t, "the epoch", w.agent(2).Epoch, before+1)
	for _, verb := range []string{"enable", "refresh"} {
		call[api.ErrorAnswer](w, 404, "POST", "/v1/agents/8453:99/"+verb, "")
	}
	call[api.ErrorAnswer](w, 404, "GET", "/v1/agents/8453:99", "")
	call[api.ErrorAnswer](w, 400, "GET", "/v1/agents/x", "")
	call[api.ErrorAnswer](w, 400, "GET", "/v1/agents/8453:1?registry=0x12", "")
	call[api.ErrorAnswer](w, 400, "GET", "/v1/agents?state=x", "")
	call[api.ErrorAnswer](w, 400, "POST", "/v1/agents/8453:1/probe", "") // the chain has no RPC URL
	if v := call[operator.Overview](w, 200, "GET", "/v1/stats", ""); v.Open[outcome.Queued] != 3 || v.Agents["pending"] != 3 {
		t.Errorf("%+v", v)
	}
	call[api.ChainList](w, 200, "GET", "/v1/chains", "")
}
