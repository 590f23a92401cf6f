package alerts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// specSecret is from the Standard Webhooks specification.
const specSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver is an HTTP server that checks signatures with the receivers' library.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	answer func(post int) (status int, header http.Header) // nil: 204
	posts  []post
}

type post struct{ id, body string }

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	hook, err := webhooks.NewWebhook(specSecret)
	heraldtest.Must(t, err)
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err = errors.Join(err, hook.Verify(body, req.Header)); err != nil || req.Method != http.MethodPost ||
			req.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %v: %v", req.Method, req.Header, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.posts = append(r.posts, post{req.Header.Get("webhook-id"), string(body)})
		status := http.StatusNoContent
		if r.answer != nil {
			var header http.Header
			status, header = r.answer(len(r.posts))
			for name := range header {
				w.Header().Set(name, header.Get(name))
			}
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) received() []post {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.posts)
}

// world is a database with an outbox.
type world struct {
	*testing.T
	store *store.Store
	db    *pgx.Conn
	log   *heraldtest.Log
}

func newWorld(t *testing.T) *world {
	t.Helper()
	url := heraldtest.Postgres(t, postgres.Migrate)
	return &world{T: t, store: storetest.Open(t, url, 8), db: heraldtest.Connect(t, url), log: &heraldtest.Log{}}
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	_, err := w.db.Exec(w.Context(), sql, args...)
	heraldtest.Must(w, err)
}

// pass makes the outbox older by d.
func (w *world) pass(d time.Duration) {
	w.Helper()
	w.exec(`UPDATE herald.alerts SET next_attempt_at = next_attempt_at - $1::interval, created_at = created_at - $1::interval`, d)
}

func (w *world) sender(url string, to SenderRecords) *Sender {
	w.Helper()
	guard, err := netguard.New(netguard.Config{})
	heraldtest.Must(w, err)
	schedule, err := outcome.NewSchedule([]time.Duration{time.Second, time.Minute, time.Hour})
	heraldtest.Must(w, err)
	s, err := NewSender(SenderConfig{Records: to, URL: secret.New(url), Secret: secret.New(specSecret), Guard: guard.Configured(),
		Schedule: schedule, Logger: w.log.Logger(slog.LevelDebug), Random: func() float64 { return 0.5 }})
	heraldtest.Must(w, err)
	w.Cleanup(s.client.CloseIdleConnections)
	return s
}

func (w *world) send(s *Sender) {
	w.Helper()
	heraldtest.Must(w, s.SendDue(w.Context()))
}

func (w *world) watcher(wake func()) *Watcher {
	w.Helper()
	watcher, err := NewWatcher(WatcherConfig{Ledger: w.store, Records: records.New(w.store), Wake: wake, DisableAfter: 120 * time.Hour,
		Logger: w.log.Logger(slog.LevelDebug)})
	heraldtest.Must(w, err)
	return watcher
}

// raise looks for news once, as the leading worker does, and so raises the alerts.
func (w *world) raise() {
	w.Helper()
	heraldtest.Must(w, w.watcher(func() {}).LeadAndLook(w.Context()))
}

// fail inserts an agent that has failed every call since the given time ago. Such an agent is disabled after five days.
func (w *world) fail(agent int, since time.Duration) {
	w.Helper()
	w.exec(`INSERT INTO herald.agents (chain_id, identity_registry, agent_id, state, failing_since, last_error, last_error_at)
		VALUES (8453, '0xaa', $1, 'failed', now() - $2::interval, 'it said <b>whsec_token</b>', now() - interval '1 second')`, agent, since)
}

// TestPayloads checks the exact bytes of the posts.
func TestPayloads(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 12, 0, 0, 999, time.UTC)
	since := at.Add(-time.Hour).Truncate(time.Second)
	n := records.News{Agent: erc8004.Agent{ChainID: 8453, Registry: "0xaa", ID: "42"}, At: at}
	const head = `{"type":"%s","timestamp":"2026-11-23T12:00:00Z","data":{"agent":"8453:42","chainId":8453,"identityRegistry":"0xaa","agentId":"42"%s}}`
	for _, tt := range []struct {
		kind records.AlertKind
		set  func(*records.News)
		want string
	}{
		{records.AgentFailing, func(n *records.News) { n.State, n.FailingSince = "needs_auth", &since }, `,"state":"needs_auth","failingSince":"2026-11-23T11:00:00Z"`},
		{records.AgentRecovered, func(n *records.News) { n.FailingSince = &since }, `,"failingSince":"2026-11-23T11:00:00Z"`},
		{records.AgentDisabled, func(n *records.News) { n.State = "disabled" }, `,"by":"operator"`},
		{records.AgentDisabled, func(n *records.News) { n.ByHerald, n.FailingSince = true, &since }, `,"failingSince":"2026-11-23T11:00:00Z","by":"herald"`},
		{records.DeliveriesDead, func(n *records.News) {
			n.Count, n.Reasons, n.Deliveries = 3, map[string]int{"timeout": 2, "expired": 1}, []uuid.UUID{{1}}
		}, `,"count":3,"reasons":{"expired":1,"timeout":2},"deliveries":["01000000-0000-0000-0000-000000000000"]`},
	} {
		news := n
		news.Kind = tt.kind
		tt.set(&news)
		got, err := composePayload(news)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, string(tt.kind), string(got), fmt.Sprintf(head, tt.kind, tt.want))
	}
}

// TestConcurrentSendersPostOnce: two workers check and post concurrently, and each alert is received once.
func TestConcurrentSendersPostOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := newReceiver(t)
	w.exec(`INSERT INTO herald.agents (chain_id, identity_registry, agent_id, failing_since, last_error_at)
		SELECT 1, '0xaa', n, now(), now() FROM generate_series(1, 5000) n`) // the first look reads only these
	w.fail(1, time.Hour)
	w.fail(2, 121*time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		s := w.sender(r.URL, records.New(w.store))
		watcher := w.watcher(s.Wake)
		watcher.Interval = 40 * time.Millisecond
		wg.Go(func() { s.Run(ctx) })
		wg.Go(func() { watcher.Run(ctx) })
	}
	heraldtest.Await(t, "both alerts are noted as sent", func() bool {
		var sent int
		return w.db.QueryRow(t.Context(), `SELECT count(sent_at) FROM herald.alerts`).Scan(&sent) == nil && sent == 2
	})
	cancel()
	wg.Wait()
	heraldtest.Equal(t, "posts", len(r.received()), 2)
	heraldtest.Contains(t, "the log", w.log.String(), "an agent is disabled")
}

// TestRetries: an alert whose post fails (500, a redirect, 429) is posted again after its wait, with the same id and
// the same bytes, until a post succeeds.
func TestRetries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := newReceiver(t)
	r.answer = func(post int) (int, http.Header) {
		return []int{500, 302, 429, 200}[post-1], http.Header{"Retry-After": {"600"}, "Location": {r.URL + "/elsewhere"}}
	}
	w.fail(1, time.Hour)
	w.raise()
	s := w.sender(r.URL, records.New(w.store))
	for i, wait := range []time.Duration{10 * time.Minute, time.Minute, time.Hour} {
		w.send(s)
		w.send(s) // it is not due
		w.pass(wait - 5*time.Second)
		w.send(s)
		heraldtest.Equal(t, fmt.Sprint("posts after ", wait), len(r.received()), i+1)
		w.pass(6 * time.Second)
	}
	w.send(s)
	w.pass(24 * time.Hour)
	w.send(s)
	got := r.received()
	heraldtest.Equal(t, "the posts", got, slices.Repeat(got[:1], 4))
	heraldtest.Equal(t, "warnings", w.log.Count("level=WARN"), 1)
}

// TestSenderGivesUp: the sender gives up after three days, with a warning. The stored error does not contain the URL.
func TestSenderGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fail(1, time.Hour)
	w.raise()
	s := w.sender("http://"+heraldtest.Address(t)+"/topsecret", records.New(w.store))
	for range 5 {
		w.send(s)
		w.pass(2 * time.Hour)
	}
	w.pass(62 * time.Hour)
	w.send(s)
	var attempts int
	var over bool
	var why string
	if err := w.db.QueryRow(t.Context(), `SELECT attempts, next_attempt_at IS NULL AND sent_at IS NULL, error FROM herald.alerts`).
		Scan(&attempts, &over, &why); err != nil || attempts != 6 || !over || !strings.Contains(why, "connection refused") {
		t.Errorf("%d attempts, over: %t, %s, %v", attempts, over, why, err)
	}
	if text := w.log.String(); strings.Contains(text+why, "topsecret") || w.log.Count("an alert is dropped") != 1 {
		t.Errorf("the log says %s", text)
	}
}

// dying is the ledger of a sender that dies after the post, before it is recorded.
type dying struct{ SenderRecords }

func (dying) EndAlert(context.Context, records.Alert) error { return errors.New("the process is gone") }

// TestUnrecordedPostIsRepeated: an alert that was posted and not recorded is posted again by the next sender, with the
// same id.
func TestUnrecordedPostIsRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := newReceiver(t)
	w.fail(1, time.Hour)
	w.raise()
	heraldtest.Fails(t, "an alert that could not be noted",
		w.sender(r.URL, dying{records.New(w.store)}).SendDue(t.Context()))
	s := w.sender(r.URL, records.New(w.store))
	w.send(s) // until the lease expires
	heraldtest.Equal(t, "posts within the lease", len(r.received()), 1)
	w.pass(alertLease)
	w.send(s)
	w.pass(24 * time.Hour)
	w.send(s)
	got := r.received()
	heraldtest.Equal(t, "the posts", got, slices.Repeat(got[:1], 2))
}
