//go:build browser

// A walk through every page in a real Chromium, with hostile text in every field: `make browser`.

package pages_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/door/server/pages"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// hostile is text that strangers may write into any field. It contains no NUL, because Postgres cannot store it and
// Herald replaces it by U+FFFD.
var hostile = "<script>document.title='owned'</script><img src=x onerror=alert(1)> \"'`${x}{{x}} \u202eesrever\u202c \u2066iso \u200bzero " +
	"\x1b[31m 👩‍👩‍👧‍👦 ❤️ \ufffd\ufeff " + strings.Repeat("W", 4096)

// seed fills the database with 100,000 deliveries of 200 agents, in every status and with hostile text in every field.
const seed = `
INSERT INTO herald.agents (chain_id, identity_registry, agent_id, state, endpoint, last_error, last_error_at, last_ok_at, protocol, tools, server_info, registration, enabled, policy, own_policy,
       hour, hour_calls, hour_failed, hour_failures, hour_latency)
SELECT 8453, '0x8004a169fb4a3325136eb29fa0ceb6d2e539a432', n, (ARRAY['connected','failed','needs_auth','pending','disabled'])[1 + n % 5],
       'https://agent.example/' || $1, $1, now() - interval '5 minutes', now() - n * interval '1 minute', left($1, 40),
       jsonb_build_array(jsonb_build_object('name', $1), jsonb_build_object('name', 'agent.receiveFeedback')),
       jsonb_build_object('name', $1, 'version', $1), jsonb_build_object('name', $1, 'document', $1, 'source', 'cid', 'from', $1, 'binding', 'domain'), n % 5 <> 4, p, p,
       date_trunc('hour', now(), 'UTC'), 120, 20, '{"schema_mismatch": 15, "timeout": 5}', '{0,0,50,30,20,0,0,0,0,0,0,0,0,0}'
  FROM generate_series(1, 200) n,
       jsonb_build_object('batchSize', 5, 'filters', jsonb_build_array(jsonb_build_object('action', 'skip', 'when', jsonb_build_object('tag1', $1)))) p;
INSERT INTO herald.agent_hours SELECT date_trunc('hour', now(), 'UTC') - h * interval '1 hour', chain_id, identity_registry, agent_id, 100 + h % 70, h % 13, '{"timeout": 5}',
       ARRAY[0,0,10,20,30,h % 24,0,h % 9,0,0,0,0,0,0] FROM herald.agents, generate_series(1, 719) h;
INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, job, status, reason, attempts, tool_name, endpoint,
       file_verification, file_source, error, created_at, next_attempt_at, finished_at, handed_at)
SELECT md5(n::text)::uuid, 'eip155:8453:0x8004baa17c55a88189ae136b182e5fda19de9b63/' || n % 200 || '/0x00000000000000000000000000000000000000c1/' || n || '#NewFeedback',
       'NewFeedback', 8453, '0x8004a169fb4a3325136eb29fa0ceb6d2e539a432', 1 + n % 200, 'eip155:8453:0x8004/' || n % 200 || '/0x00000000000000000000000000000000000000c1', n,
       jsonb_build_object('type', 'NewFeedback', 'chainId', 8453, 'clientAddress', '0x00000000000000000000000000000000000000c1', 'feedbackIndex', n, 'value', '99',
                          'tag1', $1, 'tag2', $1, 'endpoint', $1, 'feedbackURI', $1, 'transactionHash', '0x' || md5(n::text) || md5(n::text), 'blockNumber', n, 'meta', jsonb_build_object('x', $1)),
       s, CASE s WHEN 'delivered' THEN NULL WHEN 'queued' THEN NULL WHEN 'waiting' THEN 'timeout' WHEN 'held' THEN 'auth_required' WHEN 'skipped' THEN 'no_uri'
          WHEN 'rejected' THEN 'tool_error' WHEN 'cancelled' THEN 'operator' ELSE 'server_error' END,
       n % 5, $1, 'https://agent.example/' || $1, 'raw', 'cid', CASE WHEN s <> 'delivered' THEN $1 END, now() - ($2 - n) * interval '1 second',
       CASE WHEN s = 'waiting' THEN now() + interval '1 hour' END, CASE WHEN s IN ('delivered','skipped','rejected','dead','cancelled') THEN now() END, NULL
  FROM (SELECT n, CASE WHEN n % 10 < 3 THEN (ARRAY['waiting','held','skipped','rejected','dead','cancelled','queued'])[1 + n % 7] ELSE 'delivered' END AS s
          FROM generate_series(1, $2) n) x;
INSERT INTO herald.attempts (delivery_id, number, started_at, duration_ms, stage, outcome, reason, error, arguments, response, protocol)
SELECT md5(n::text)::uuid, a, now() - interval '1 hour', 1234, (ARRAY['check','resolve','fetch','compose','call'])[1 + n % 5], 'waiting', 'timeout', $1,
       jsonb_build_object($1, $1), jsonb_build_object('content', $1), left($1, 40)
  FROM generate_series(99900, 100000) n, generate_series(1, 3) a;
INSERT INTO herald.audit (actor, action, filter, matched, moved, state, note)
SELECT $1, 'replay', jsonb_build_object('agent', $1), 5, 3, (ARRAY['running','done','failed'])[1 + n % 3], $1 FROM generate_series(1, 60) n;
INSERT INTO herald.chain_cursors (chain_id, contracts, backfill, next_block) VALUES (8453, '0x8004baa17c55a88189ae136b182e5fda19de9b63', '', 1000)`

// lent is the operator's backend: the test's store.
type lent struct{ store *store.Store }

func (b lent) OpenStore(context.Context, operator.StoreOptions) (*operator.Session, error) {
	return &operator.Session{Ledger: b.store, Records: records.New(b.store), Close: func() {}}, nil
}

func (lent) OpenContent() (*operator.Content, error) {
	return &operator.Content{HasChain: func(uint64) bool { return false }, Close: func() {}}, nil
}
func (lent) Keyset() (*secret.Keyset, error) { return secret.Create() }
func (lent) Master() (secret.Master, error)  { return nil, nil }
func (lent) DataDir() string                 { return "" }

// hour is the last hour of a worker, as the overview shows it.
type hour struct{}

func (hour) OpenBreakers() int          { return 3 }
func (hour) Missing() map[string]string { return nil }
func (hour) Breaker(string) string      { return "half_open" }
func (hour) Effort(context.Context, erc8004.Agent) *effort.Usage {
	return &effort.Usage{Budget: 60, Left: 12.5, Calls: 47.5, Mean: 25}
}
func (hour) Minutes(_ context.Context, n int) ([]throughput.Minute, error) {
	return listPeriods(n, time.Minute), nil
}
func (hour) Hours(_ context.Context, n int) ([]throughput.Minute, error) {
	return listPeriods(n, time.Hour), nil
}

func listPeriods(n int, long time.Duration) []throughput.Minute {
	all := make([]throughput.Minute, n)
	for i := range all {
		all[i] = throughput.Minute{At: time.Now().Truncate(long).Add(time.Duration(i+1-n) * long),
			Outcomes: map[outcome.Status]int64{outcome.Delivered: int64(40 + 30*(i%7)), outcome.Waiting: int64(i % 11), outcome.Dead: int64(i % 3)}}
		all[i].Latency[4+i%5] = 40
	}
	return all
}

// servePages serves the pages of that many deliveries, with the text in every field.
func servePages(t testing.TB, deliveries int, text string) (base string) {
	t.Helper()
	address := heraldtest.Postgres(t, postgres.Migrate)
	db := heraldtest.Connect(t, address)
	for _, sql := range strings.Split(seed, ";\n") {
		sql = strings.NewReplacer("$1", "$herald$"+text+"$herald$", "$2", fmt.Sprint(deliveries)).Replace(sql)
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Exec(t.Context(), "VACUUM ANALYZE"); err != nil {
		t.Fatal(err)
	}
	st := storetest.Open(t, address, 4)
	cfg, err := config.Load(nil)
	heraldtest.Must(t, err)
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	o := operator.New(operator.Config{Settings: cfg, Backend: lent{st}, Logger: logger, Timeout: 10 * time.Second, Live: hour{}})
	p, err := pages.New(pages.Config{Operator: o, Logger: logger})
	heraldtest.Must(t, err)
	web, err := server.New(server.Config{Listen: "127.0.0.1:0", Logger: logger, Metrics: http.NotFoundHandler(),
		Ready: func() (waiting, degraded map[string]string) { return nil, nil }})
	heraldtest.Must(t, err)
	web.Mount(http.NotFoundHandler(), p.Routes())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = web.Shutdown(ctx)
	})
	return "http://" + web.Addr()
}

// observed records actions of the browser that no page may cause.
type observed struct {
	mu     sync.Mutex
	origin string
	faults []string
}

func (o *observed) hear(event any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			o.faults = append(o.faults, fmt.Sprintf("console: %s %s", e.Type, e.Args[0].Value))
		}
	case *runtime.EventExceptionThrown:
		o.faults = append(o.faults, "exception: "+e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning {
			o.faults = append(o.faults, "log: "+e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err != nil || u.Scheme+"://"+u.Host != o.origin {
			o.faults = append(o.faults, "request off the origin: "+e.Request.URL)
		}
	}
}

func (o *observed) take() (faults []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	faults, o.faults = o.faults, nil
	return faults
}

func TestInBrowser(t *testing.T) {
	axe, err := os.ReadFile(os.Getenv("HERALD_AXE"))
	if err != nil {
		t.Fatalf("HERALD_AXE names axe.min.js, as make browser does: %v", err)
	}
	base := servePages(t, 100_000, hostile)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox) // Chromium cannot use its sandbox as root
	allocator, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	defer cancel()
	ctx, cancel := chromedp.NewContext(allocator)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	seen := &observed{origin: base}
	chromedp.ListenTarget(ctx, seen.hear)
	heraldtest.Must(t, chromedp.Run(ctx, network.Enable(), log.Enable(), runtime.Enable(), emulation.SetFocusEmulationEnabled(true)))

	const one = "c4ca4238-a0b9-2382-0dcc-509a6f75849b" // the MD5 hash of 1
	var last string
	if err := chromedp.Run(ctx, chromedp.Navigate(base+"/deliveries?status=waiting"),
		chromedp.AttributeValue("table a.id", "href", &last, nil)); err != nil {
		t.Fatal(err)
	}
	walk := map[string]string{"overview": "/", "deliveries": "/deliveries", "search": "/deliveries?agent=8453:7&status=dead&since=48h&client=0x00000000000000000000000000000000000000c1",
		"delivery": last, "finished": "/deliveries/" + one, "replay": "/deliveries/move?action=replay&status=dead", "agents": "/agents",
		"agent": "/agents/8453:7?span=month", "client": "/clients/0x00000000000000000000000000000000000000c1", "week": "/?span=week", "groups": "/deliveries/groups", "find": "/find?q=%3Cscript", "chains": "/chains", "audit": "/audit", "problem": "/deliveries?status=" + url.QueryEscape(hostile[:200])}
	for name, path := range walk {
		for _, width := range []int64{360, 1280, 1920} {
			for _, scheme := range []string{"light", "dark"} {
				what := fmt.Sprintf("%s-%d-%s", name, width, scheme)
				t.Run(what, func(t *testing.T) { checkPage(ctx, t, seen, what, base+path, width, scheme, string(axe)) })
			}
		}
	}
	t.Run("refresh", func(t *testing.T) { checkRefresh(ctx, t, base, base+last) })
}

// checkRefresh checks that a refresh waits while a text is open or a link has the focus, that the page says so and when
// Herald does not answer, and that the second of two clicks sends no form.
func checkRefresh(ctx context.Context, t *testing.T, overview, delivery string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	note := func(is string) chromedp.Action {
		return chromedp.Poll(`document.getElementById("stale").textContent`+is, nil, chromedp.WithPollingInterval(100*time.Millisecond))
	}
	var open, focused bool
	var sent int
	heraldtest.Must(t, chromedp.Run(ctx,
		chromedp.Navigate(delivery), chromedp.WaitReady("#live details"),
		chromedp.Evaluate(`document.querySelector("#live details").open = true`, nil),
		note(`.endsWith("a text is open or selected here, or a link has the focus.")`),
		chromedp.Evaluate(`document.querySelector("#live details").open`, &open),
		chromedp.Evaluate(`document.querySelector("#live details").open = false`, nil), note(` === ""`),
		chromedp.Evaluate(`(() => { let sent = 0;
			document.addEventListener("submit", event => { sent += !event.defaultPrevented; event.preventDefault(); });
			const form = document.querySelector("form[method=post]");
			form.noValidate = true;
			form.requestSubmit();
			form.requestSubmit();
			return sent; })()`, &sent),
		chromedp.Navigate(overview), chromedp.WaitReady("#rest a"),
		chromedp.Evaluate(`document.querySelector("#rest a").focus()`, nil), note(`.includes("has the focus")`),
		chromedp.Evaluate(`document.activeElement.matches("#rest a")`, &focused),
		chromedp.Evaluate(`document.activeElement.blur()`, nil), note(` === ""`),
		network.EmulateNetworkConditions(true, 0, -1, -1), note(`.endsWith("Herald does not answer.")`),
		network.EmulateNetworkConditions(false, 0, -1, -1), note(` === ""`)))
	heraldtest.Equal(t, "a text stays open", open, true)
	heraldtest.Equal(t, "a link keeps the focus", focused, true)
	heraldtest.Equal(t, "forms sent by two clicks", sent, 1)
}

// BenchmarkPages measures the server's time for each page at 1,000,000 deliveries.
func BenchmarkPages(b *testing.B) {
	base := servePages(b, 1_000_000, "a tool that answered with an error")
	for _, path := range []string{"/", "/deliveries", "/deliveries?status=queued", "/deliveries?status=running", "/deliveries?status=dead", "/deliveries?agent=8453:7",
		"/deliveries?agent=8453:7&status=held", "/deliveries?client=0x00000000000000000000000000000000000000c1", "/deliveries?client=0x00000000000000000000000000000000000000ff",
		"/deliveries?since=1h", "/deliveries?since=1s", "/deliveries?until=200h&status=delivered", "/deliveries?kind=ResponseAppended", "/deliveries?status=dead&reason=server_error",
		"/deliveries?status=dead&reason=timeout", "/deliveries?cursor=500000", "/deliveries?key=eip155:1:x", "/deliveries?transaction=0x" + strings.Repeat("0", 64),
		"/deliveries/c4ca4238-a0b9-2382-0dcc-509a6f75849b", "/deliveries?status=rejected&status=dead&ended_since=1h",
		"/deliveries?status=rejected&ended_since=1s", "/deliveries/groups", "/clients/0x00000000000000000000000000000000000000c1",
		"/clients/0x00000000000000000000000000000000000000ff", "/find?q=8453:7", "/agents/8453:7?span=month", "/agents?sort=slow", "/agents", "/agents?state=failed", "/agents/8453:7", "/chains", "/audit"} {
		b.Run(strings.TrimPrefix(path, "/"), func(b *testing.B) {
			for b.Loop() {
				res, err := http.Get(base + path)
				heraldtest.Must(b, err)
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if res.StatusCode != http.StatusOK {
					b.Fatalf("%d", res.StatusCode)
				}
			}
		})
	}
}

func checkPage(ctx context.Context, t *testing.T, seen *observed, what, address string, width int64, scheme, axe string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var title string
	var overflow []string
	var found string
	var picture []byte
	err := chromedp.Run(ctx,
		emulation.SetDeviceMetricsOverride(width, 900, 1, width < 500),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.Navigate(address), chromedp.WaitReady("main"), chromedp.Title(&title),
		// This opens all details elements. They must not be wider than the page either.
		chromedp.Evaluate(`document.querySelectorAll("details").forEach(d => d.open = true);
			[...document.querySelectorAll("body *")].filter(e => !e.closest(".skip") && e.getBoundingClientRect().right > innerWidth + 1).slice(0, 3).map(e => e.outerHTML.slice(0, 120))
			.concat(document.documentElement.scrollWidth > innerWidth ? ["the page is " + document.documentElement.scrollWidth + " wide"] : [])`, &overflow),
		chromedp.Evaluate(axe+`; axe.run({resultTypes: ["violations"]}).then(r => JSON.stringify(r.violations.map(v => [v.impact, v.id, v.nodes[0].html.slice(0, 160)])))`,
			&found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }),
		chromedp.CaptureScreenshot(&picture))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if dir := os.Getenv("HERALD_PICTURES"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, what+".png"), picture, 0o644); err != nil {
			t.Error(err)
		}
	}
	if !strings.HasSuffix(title, "– Herald") {
		t.Errorf("%s: the title is %q", what, title)
	}
	if len(overflow) > 0 {
		t.Errorf("%s is wider than its window: %q", what, overflow)
	}
	if strings.HasPrefix(what, "overview") {
		var shown bool // by keyboard focus
		err := chromedp.Run(ctx, chromedp.Evaluate(`(bar => { bar.focus();
			return [...bar.querySelectorAll("text")].map(t => t.getBoundingClientRect()).every(r => r.width > 0 && r.left >= 0 && r.right <= innerWidth);
			})(document.querySelector(".plot g"))`, &shown))
		if err != nil || !shown {
			t.Errorf("%s: a focused bar does not show its values within the page: %v", what, err)
		}
	}
	var violations [][3]string
	if err := json.Unmarshal([]byte(found), &violations); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	for _, v := range violations {
		if v[0] == "serious" || v[0] == "critical" {
			t.Errorf("%s: axe-core: %s", what, v)
		}
	}
	for _, fault := range seen.take() {
		if strings.HasPrefix(what, "problem") && strings.Contains(fault, "400 (Bad Request)") {
			continue // this page is meant to answer 400
		}
		t.Errorf("%s: %s", what, fault)
	}
}
