// Package watch stores a chain's events. It connects package follower, which reads the events, with the store's
// cursors, which move in the transaction that commits the events' jobs. docs/design/chain.md describes it.
//
// Packages eventlog and erc8004 read and decode logs, package store keeps the rows and decides the verdicts, and
// package delivery delivers.
//
// Invariants: Each contract has a cursor of its own. One process at a time reads a contract (an advisory lock in
// Postgres). A process that continues after losing its connection and so its lock commits nothing, because the cursor
// is compared. A log that becomes no job is stored as a rejected row, and the cursor moves on.
package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
)

// Ledger is the part of the store that a watcher needs.
type Ledger interface {
	LeadChain(ctx context.Context, keys []cursor.Key,
		do func(context.Context, []cursor.Key) error) (bool, error)
	OpenCursor(ctx context.Context, key cursor.Key, start uint64, end *uint64) (cursor.Cursor, error)
	RestartCursor(ctx context.Context, c *cursor.Cursor, start uint64) error
	AdvanceCursors(ctx context.Context, cursors []*cursor.Cursor, a store.Advance) (store.Advanced, error)
	Cursors(ctx context.Context, chainID uint64) ([]cursor.State, error)
	NoteStall(ctx context.Context, key cursor.Key, since *time.Time, why string) error
	Accept(ctx context.Context, in []ledger.Intake) ([]ledger.Acceptance, []ledger.Task, error)
}

// Dispatcher puts tasks into Redis and returns the number of tasks that it dispatched.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []ledger.Task) int
}

// Config configures a Watcher.
type Config struct {
	Chain      *eventlog.Reader
	Deployment erc8004.Deployment // the registries whose events are read
	Ledger     Ledger
	Dispatcher Dispatcher // nil: the worker's reconciler dispatches (no Redis connection)
	Limits     job.Limits

	// From is the first block to read of contracts that have no cursor. If it is nil, they are read from the node's
	// head on.
	From *uint64
	// Ends means that the watcher ends after the last block, which is To, or if To is nil, the node's head when the
	// watcher first started. It requires From. Without Ends, the watcher follows the chain until it is stopped.
	Ends bool
	To   *uint64
	// Rate bounds the new deliveries per second of a watcher with an end, that is, of a backfill. 0 means unlimited.
	Rate float64
	// Filter returns the filter of the default policy that skips an event, and a sentence about it; "": none does. nil:
	// there is no such policy. CountFiltered, if not nil, is called with the filter of each delivery that it ended.
	Filter        func(job.Job) (policy.Decision, string)
	CountFiltered func(policy.Decision)
	// Poll is the pause between readings at the head. The default is 2 s.
	Poll time.Duration
	// Standby is the pause before the watcher tries again to become the reader of a contract, and after a failure of
	// the store. The default is 3 s.
	Standby time.Duration

	// Report is optional and is called after each commit, one call at a time. It must not block for long.
	Report func(Report)
	Logger *slog.Logger // default slog.Default()
}

// Report is the result of committing one range of blocks.
type Report struct {
	To, Head uint64 // the last block of the range, and the node's head
	Answers  []ledger.Acceptance
	Events   []eventlog.Entry // one for each of Answers; Err is set for a log that becomes no job
	Vanished []ledger.Vanished
}

// Watcher reads the contracts of one chain. Call Run once.
type Watcher struct {
	Config
	keys []cursor.Key // of the cursors: one for each contract, or that of the backfill
	// first is the one of keys further than which no other contract is read: the identity contract, so that a moved
	// agent is noticed in time.
	first cursor.Key

	pace   pace
	ending bool   // the commit of a backfill's last block was begun; it deletes the cursor
	told   string // the last logged reason why nothing is read
	log    *slog.Logger

	mu      sync.Mutex // groups commit at the same time
	failure failure    // failures since the last commit
}

// New validates the configuration and returns a Watcher.
func New(cfg Config) (*Watcher, error) {
	if cfg.Chain == nil || cfg.Ledger == nil || cfg.Limits.MaxTimeout <= 0 {
		return nil, errors.New("watch: a watcher needs a chain, a ledger and limits")
	}
	if cfg.Poll < 0 || cfg.Standby < 0 {
		return nil, errors.New("watch: Poll or Standby is negative")
	}
	if cfg.Ends && (cfg.From == nil || cfg.To != nil && *cfg.From > *cfg.To) || cfg.To != nil && !cfg.Ends {
		return nil, errors.New("watch: a range of blocks has no beginning, or ends before it")
	}
	if cfg.Rate < 0 || cfg.Rate > 0 && !cfg.Ends {
		return nil, errors.New("watch: Rate is negative, or set without an End")
	}
	cfg.Poll = cmp.Or(cfg.Poll, 2*time.Second)
	cfg.Standby = cmp.Or(cfg.Standby, 3*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	id, contracts := cfg.Chain.ChainID(), cfg.Deployment.List()
	if len(contracts) == 0 {
		return nil, fmt.Errorf("no registry of chain %d is known: set IDENTITY_REGISTRY_%d and REPUTATION_REGISTRY_%d",
			id, id, id)
	}
	w := &Watcher{Config: cfg, pace: pace{rate: cfg.Rate}, log: cfg.Logger.With("chain", id)}
	switch {
	case cfg.Ends:
		blocks := fmt.Sprintf("%d-", *cfg.From)
		if cfg.To != nil {
			blocks += fmt.Sprint(*cfg.To)
		}
		w.keys = []cursor.Key{{ChainID: id, Contracts: strings.Join(contracts, ","), Backfill: blocks}}
	default:
		for _, contract := range contracts {
			w.keys = append(w.keys, cursor.Key{ChainID: id, Contracts: contract})
		}
	}
	w.first = w.keys[0]
	if i := slices.Index(contracts, strings.ToLower(cfg.Deployment.Identity.Hex())); i >= 0 && !cfg.Ends {
		w.first = w.keys[i]
	}
	return w, nil
}

// Keys returns the keys of the watcher's cursors.
func (w *Watcher) Keys() []cursor.Key { return w.keys }

// Run reads until ctx ends, or until the last block was read; then it returns nil. While the node or the store is
// unreachable, or another process reads a contract, it logs that and keeps trying.
func (w *Watcher) Run(ctx context.Context) error {
	for again := time.Duration(0); loop.Pause(ctx, again) == nil; {
		done := false
		leads, err := w.Ledger.LeadChain(ctx, w.keys, func(ctx context.Context, led []cursor.Key) error {
			err := w.follow(ctx, led)
			done = err == nil
			return err
		})
		again = w.Standby
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case done:
			return nil
		case errors.Is(err, errRegroup):
			again = 0
		case errors.Is(err, cursor.ErrMoved):
			w.tellOnce("another process reads this chain: waiting for it to end")
		case err != nil:
			w.noteFailure(err)
		case !leads:
			w.tellOnce("another process reads this chain: standing by")
		}
	}
	return ctx.Err()
}

// tellOnce logs the reason why nothing is read, unless it was the last one logged.
func (w *Watcher) tellOnce(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != w.told {
		w.told = text
		w.log.Warn(text)
	}
}

// failure is the reason why a chain cannot be read.
type failure struct {
	cause  string        // the innermost error: its wrappers contain block numbers, which change while the chain grows
	times  int           // consecutive failures
	logged time.Time     // time of the last log line
	pause  time.Duration // between that line and the next one
}

const (
	// firstRepeat is the time after which a lasting failure is logged again. The time doubles up to lastRepeat.
	firstRepeat = time.Minute
	lastRepeat  = time.Hour
)

// noteFailure logs the reason why the chain cannot be read. It logs a lasting failure again at growing intervals.
func (w *Watcher) noteFailure(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f, now, cause := &w.failure, time.Now(), err
	for inner := cause; inner != nil; inner = errors.Unwrap(inner) {
		cause = inner
	}
	if text := cause.Error(); text != f.cause {
		*f = failure{cause: text}
	}
	if f.times++; f.times > 1 && now.Sub(f.logged) < f.pause {
		return
	}
	f.logged, f.pause = now, min(max(2*f.pause, firstRepeat), lastRepeat)
	w.log.Warn("the chain is not read, trying again", "failures", f.times, "error", err)
}

// pace limits the deliveries of a backfill to a number per second: later deliveries wait until the time of the
// previous ones has passed. It never splits a range, so that the cursor moves over all blocks of a range at once.
type pace struct {
	rate float64   // deliveries per second; 0: unlimited
	over time.Time // when the time of the counted deliveries ends
}

// countJobs records n more deliveries.
func (p *pace) countJobs(n int) {
	if p.rate == 0 || n == 0 {
		return
	}
	if now := time.Now(); p.over.Before(now) {
		p.over = now
	}
	p.over = p.over.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
}

// awaitRoom waits until the time of the counted deliveries has passed. If ctx ends first, it returns ctx's error.
func (p *pace) awaitRoom(ctx context.Context) error {
	over, cancel := context.WithDeadline(ctx, p.over)
	defer cancel()
	<-over.Done()
	return ctx.Err()
}
