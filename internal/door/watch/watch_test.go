package watch

import (
	"context"
	"errors"
	"io"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// world is a development chain and a store.
type world struct {
	*testing.T
	net      *devnet.Net
	database string // its URL
	store    *store.Store
	client   *eventlog.Reader
	agent    *big.Int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return newWorldOf(t, devnet.Config{})
}

func newWorldOf(t *testing.T, cfg devnet.Config) *world {
	t.Helper()
	w := &world{T: t, net: devnettest.Start(t, cfg), database: heraldtest.Postgres(t, postgres.Migrate)}
	w.store = storetest.Open(t, w.database, 8)
	nodes, err := node.New(node.Config{ChainID: w.net.ChainID(), URLs: []secret.Secret{secret.New(w.net.URL())}})
	heraldtest.Must(t, err)
	w.client = eventlog.New(nodes, false)
	t.Cleanup(w.client.Close)
	w.agent, _, err = w.net.Register(t.Context(), w.net.Account(0), "data:application/json,{}")
	heraldtest.Must(t, err)
	return w
}

// give submits n feedbacks, one per block.
func (w *world) give(n int) {
	w.Helper()
	for range n {
		_, _, err := w.net.GiveFeedback(w.Context(), w.net.Account(1),
			devnet.Feedback{AgentID: w.agent, Value: big.NewInt(1)})
		heraldtest.Must(w, err)
	}
}

// watcher is a running watcher and its reports.
type watcher struct {
	wait func() error // returns its error, once it has ended
	stop func() error // stops it and returns its error

	mu       sync.Mutex
	verdicts map[ledger.Verdict]int // of deliveries
	last     uint64
}

func (w *world) watch(change func(*Config)) *watcher {
	w.Helper()
	start := uint64(0)
	got := &watcher{verdicts: map[ledger.Verdict]int{}}
	cfg := Config{Chain: w.client, Deployment: w.net.Deployment(), Ledger: w.store, Limits: job.Limits{MaxTimeout: time.Minute},
		From: &start, Poll: 40 * time.Millisecond, Standby: 40 * time.Millisecond, Report: func(r Report) {
			got.mu.Lock()
			defer got.mu.Unlock()
			for _, a := range r.Answers {
				got.verdicts[a.Verdict]++
			}
			got.last = r.To
		}}
	if change != nil {
		change(&cfg)
	}
	run, err := New(cfg)
	heraldtest.Must(w, err)
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	go func() { done <- run.Run(ctx) }()
	got.wait = sync.OnceValue(func() error { return <-done })
	got.stop = func() error { cancel(); return got.wait() }
	w.Cleanup(func() { _ = got.stop() })
	return got
}

func (g *watcher) count(v ledger.Verdict) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.verdicts[v]
}

// rows returns the number of deliveries by status.
func (w *world) rows() map[outcome.Status]int64 {
	w.Helper()
	got, err := records.New(w.store).Count(w.Context(), records.Filter{})
	heraldtest.Must(w, err)
	return got
}

// TestGoesOn: the next watcher resumes where the previous one stopped. It misses no event and reads none twice.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(3)
	first := w.watch(nil)
	heraldtest.Await(t, "three are accepted", func() bool { return first.count(ledger.Accepted) == 3 })
	heraldtest.Fails(t, "the stop", first.stop(), context.Canceled)
	w.give(2)
	second := w.watch(nil)
	heraldtest.Await(t, "two more are accepted", func() bool { return second.count(ledger.Accepted) == 2 })
	heraldtest.Equal(t, "events that were read twice", second.count(ledger.Known), 0)
	if got := w.rows(); got[outcome.Queued] != 5 || len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// TestTwoCommitOnce: two watchers that both believe that they lead accept each event once, because the second commit
// finds that the cursor has moved.
func TestTwoCommitOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	both := func(c *Config) { c.Ledger = everybodyLeads{w.store} }
	a, b := w.watch(both), w.watch(both)
	w.give(20)
	heraldtest.Await(t, "all are accepted", func() bool { return a.count(ledger.Accepted)+b.count(ledger.Accepted) == 20 })
	heraldtest.Equal(t, "events that were accepted and read again", a.count(ledger.Known)+b.count(ledger.Known), 0)
	heraldtest.Equal(t, "queued deliveries", w.rows()[outcome.Queued], 20)
}

// everybodyLeads is a store whose advisory lock excludes no other watcher. It behaves like a watcher that does not know
// yet that it lost its connection.
type everybodyLeads struct{ *store.Store }

func (everybodyLeads) LeadChain(ctx context.Context, keys []cursor.Key, do func(context.Context, []cursor.Key) error) (bool, error) {
	return true, do(ctx, keys)
}

// unanswered is a store that once loses the answer to the commit of a backfill's last block.
type unanswered struct {
	*store.Store
	lost bool
}

func (u *unanswered) AdvanceCursors(ctx context.Context, list []*cursor.Cursor, a store.Advance) (store.Advanced, error) {
	done, err := u.Store.AdvanceCursors(ctx, list, a)
	if err == nil && a.To == *list[0].End && !u.lost {
		u.lost = true
		return store.Advanced{}, io.ErrUnexpectedEOF
	}
	return done, err
}

// TestBackfillEnds: a backfill ends with its last block, although the commit of this block loses its answer. When it is
// started again, it finds only known events.
func TestBackfillEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(4)
	to := w.head() - 1 // the last feedback is outside the range
	for round, ledgers := range []Ledger{&unanswered{Store: w.store}, w.store} {
		backfill := w.watch(func(c *Config) { c.Ends, c.To, c.Ledger = true, &to, ledgers })
		heraldtest.Must(t, backfill.wait())
		heraldtest.Equal(t, "events that were read again", backfill.count(ledger.Known), 3*round)
		heraldtest.Equal(t, "queued deliveries", w.rows()[outcome.Queued], 3)
	}
}

// TestRefusedLog: a log that makes no valid job becomes one rejected row, and later logs are accepted.
func TestRefusedLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// This exceeds the size limit: each NUL takes six bytes in JSON.
	_, _, err := w.net.GiveFeedback(t.Context(), w.net.Account(1),
		devnet.Feedback{AgentID: w.agent, URI: string(make([]byte, 50_000))})
	heraldtest.Must(t, err)
	w.give(1)
	for range 2 {
		g := w.watch(func(c *Config) { from := uint64(0); to := uint64(10); c.From, c.Ends, c.To = &from, true, &to })
		for range 10 {
			_, err := w.net.Commit()
			heraldtest.Must(t, err)
		}
		heraldtest.Await(t, "it is read", func() bool { return w.rows()[outcome.Queued] == 1 })
		_ = g.stop()
	}
	if got := w.rows(); got[outcome.Rejected] != 1 || got[outcome.Queued] != 1 {
		t.Errorf("%v", got)
	}
}

// TestKeyOfARefusedLog: a log that becomes no job has the key of its event. A log without an index has a hash as its key.
func TestKeyOfARefusedLog(t *testing.T) {
	t.Parallel()
	e := eventlog.Entry{Log: types.Log{Address: common.Address{1}, TxHash: common.Hash{2}, Index: 3}, Err: errors.New("it is too long"),
		Event: erc8004.Event{Kind: erc8004.NewFeedback, AgentID: big.NewInt(42), Client: common.Address{4}, FeedbackIndex: 7, HasIndex: true}}
	j := job.Job{Kind: job.KindNewFeedback, ChainID: 1, ReputationRegistry: e.Log.Address, AgentID: big.NewInt(42),
		ClientAddress: common.Address{4}, FeedbackIndex: 7}
	if it := refuseLog(1, e); it.Key != j.Key() || !strings.Contains(it.Refused, "too long") {
		t.Errorf("%+v", it)
	}
	e.Event.HasIndex = false
	if it := refuseLog(1, e); !strings.HasPrefix(it.Key, "invalid:") || it.Job.Kind != job.KindNewFeedback {
		t.Errorf("%+v", it)
	}
}

// head returns the number of the newest block.
func (w *world) head() uint64 {
	w.Helper()
	b, err := w.client.ReadHead(w.Context())
	heraldtest.Must(w, err)
	return uint64(b.Number)
}
