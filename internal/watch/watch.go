// Package watch stores a chain's events. It connects chain.Follower, which reads the events, with the store's cursor,
// which moves in the transaction that commits the events' jobs. docs/design/chain.md describes it.
//
// Packages chain and erc8004 read and decode logs, package store keeps the rows and decides the verdicts, and package
// delivery delivers.
//
// Invariants: One process at a time reads a chain's registries (an advisory lock in Postgres). A process that
// continues after losing its connection and so its lock commits nothing, because the cursor is compared. A log that
// becomes no job is stored as a rejected row, and the cursor moves on.
package watch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// Ledger is the part of the store that a watcher needs.
type Ledger interface {
	LeadChain(ctx context.Context, key store.CursorKey, do func(context.Context) error) (bool, error)
	OpenCursor(ctx context.Context, key store.CursorKey, start uint64, end *uint64) (store.Cursor, error)
	RestartCursor(ctx context.Context, c *store.Cursor, start uint64) error
	AdvanceCursor(ctx context.Context, c *store.Cursor, a store.Advance) (store.Advanced, error)
	Cursors(ctx context.Context, chainID uint64) ([]store.CursorState, error)
	NoteStall(ctx context.Context, key store.CursorKey, since *time.Time, why string) error
	Acceptor
}

// Dispatcher puts tasks into Redis and returns the number of tasks that it dispatched.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []store.Task) int
}

// Config configures a Watcher.
type Config struct {
	Chain      *chain.Client
	Deployment erc8004.Deployment // the registries whose events are read
	Ledger     Ledger
	Dispatcher Dispatcher // nil: the worker's reconciler dispatches (no Redis connection)
	Limits     job.Limits

	// From is the first block to read if there is no cursor. If it is nil, the watcher begins at the node's head, or,
	// if the chain was followed with other registries before, at the first block that was not settled then.
	From *uint64
	// Ends means that the watcher ends after the last block, which is To, or if To is nil, the node's head when the
	// watcher first started. It requires From. Without Ends, the watcher follows the chain until it is stopped.
	Ends bool
	To   *uint64
	// Rate bounds the new deliveries per second of a watcher with an end, that is, of a backfill. 0 means unlimited.
	Rate float64
	// Poll is the pause between readings at the head. The default is 2 s.
	Poll time.Duration
	// Standby is the pause before the watcher tries again to become the chain's reader, and after a failure of the
	// store. The default is 3 s.
	Standby time.Duration

	// Report is optional and is called after each commit. It must not block for long.
	Report func(Report)
	Logger *slog.Logger // default slog.Default()
}

// Report is the result of committing one range of blocks.
type Report struct {
	To, Head uint64 // the last block of the range, and the node's head
	Answers  []store.Acceptance
	Events   []chain.RangeEvent // one for each of Answers; Err is set for a log that becomes no job
	Vanished []store.Vanished
}

// Watcher reads one chain. Call Run once.
type Watcher struct {
	Config
	key    store.CursorKey
	cursor store.Cursor

	committed time.Time // time of the last commit of the cursor
	atHead    bool      // the last committed range ended at the head

	pace pace
	told string // the last logged reason why nothing is read
	log  *slog.Logger

	failure failure // failures since the last commit
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
	if cfg.Standby == 0 {
		cfg.Standby = 3 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	registries := strings.Join(cfg.Deployment.List(), ",")
	if registries == "" {
		id := cfg.Chain.ChainID()
		return nil, fmt.Errorf("no registry of chain %d is known: set IDENTITY_REGISTRY_%d and REPUTATION_REGISTRY_%d", id, id, id)
	}
	blocks := "head"
	switch {
	case cfg.To != nil:
		blocks = fmt.Sprintf("%d-%d", *cfg.From, *cfg.To)
	case cfg.Ends:
		blocks = fmt.Sprintf("%d-", *cfg.From)
	}
	w := &Watcher{Config: cfg, key: store.CursorKey{ChainID: cfg.Chain.ChainID(), Follower: blocks + " of " + registries},
		pace: pace{rate: cfg.Rate}, log: cfg.Logger.With("chain", cfg.Chain.ChainID())}
	return w, nil
}

// Key returns the key of the watcher's cursor.
func (w *Watcher) Key() store.CursorKey { return w.key }

// Run reads until ctx ends, or until the last block was read; then it returns nil. While the node or the store is
// unreachable, or another process leads, it logs that and keeps trying.
func (w *Watcher) Run(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
		done := false
		leads, err := w.Ledger.LeadChain(ctx, w.key, func(ctx context.Context) error {
			err := w.follow(ctx)
			done = err == nil
			return err
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case done:
			return nil
		case errors.Is(err, store.ErrCursorMoved):
			w.tellOnce("another process reads this chain: waiting for it to end")
		case err != nil:
			w.noteFailure(err)
		case !leads:
			w.tellOnce("another process reads this chain: standing by")
		}
		pause.Reset(w.Standby)
	}
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

// follow reads from the cursor on.
func (w *Watcher) follow(ctx context.Context) (err error) {
	start, end := w.From, w.To
	if start == nil {
		if start, err = w.findStart(ctx); err != nil {
			return err
		}
	}
	if start == nil || w.Ends && end == nil {
		head, err := w.Chain.StartHead(ctx)
		if err != nil {
			return fmt.Errorf("ask where the chain ends: %w", err)
		}
		if start == nil {
			start = &head
		}
		if w.Ends {
			end = &head
		}
	}
	if w.cursor, err = w.Ledger.OpenCursor(ctx, w.key, *start, end); err != nil {
		return err
	}
	if err := w.restartUnread(ctx, *start); err != nil {
		return err
	}
	if w.cursor.End != nil && w.cursor.Next > *w.cursor.End {
		w.log.Warn("these blocks were read before: to read on, name the last one", "to", *w.cursor.End)
	}
	if w.From != nil && w.cursor.Start != *w.From {
		w.log.Warn("this chain was watched before: continuing from there, the named first block is ignored", "from", w.cursor.Next)
	}
	w.committed, w.atHead = time.Time{}, false
	var checks *chain.Checks
	if w.cursor.Checks != nil {
		if err := json.Unmarshal(w.cursor.Checks, &checks); err != nil {
			return fmt.Errorf("decode the checks of chain %d: %w", w.key.ChainID, err)
		}
	}
	ahead := newReadAhead(w.commitRange)
	f, err := w.Chain.NewFollower(chain.FollowConfig{Deployment: w.Deployment, From: w.cursor.Start, FromHead: w.From == nil, To: w.cursor.End,
		Anchors: toAnchors(w.cursor.Anchors), Finalized: w.cursor.Finalized, Settled: w.cursor.Settled, Poll: w.Poll, Limits: w.Limits,
		Checks: checks, Handle: ahead.hand, Found: w.acceptFound, Stalled: w.noteStall})
	if err != nil {
		return err
	}
	w.told = ""
	if w.failure.times == 0 {
		w.log.Info("reading the chain", "from", w.cursor.Next)
	}
	return ahead.run(ctx, f.Follow)
}

// restartUnread moves a cursor that has read nothing: to the configured first block, or, if reading begins at the
// head, down to the current head. When the cursor was created, a node may have named a head that never existed.
func (w *Watcher) restartUnread(ctx context.Context, start uint64) error {
	if w.Ends || !w.cursor.HasReadNothing() || w.cursor.Start == start || w.From == nil && w.cursor.Start < start {
		return nil
	}
	w.log.Warn("nothing was read from the block at which reading was to begin: beginning at another one",
		"was", w.cursor.Start, "from", start)
	return w.Ledger.RestartCursor(ctx, &w.cursor, start)
}

// findStart returns the block to begin with. For a cursor that has read something, it returns the cursor's start
// without asking a node for its head: the head of a halted chain, or of a node that is behind, is old. If the chain
// was followed with other registries, it returns the first block that was not settled then. It returns nil for the
// head.
func (w *Watcher) findStart(ctx context.Context) (*uint64, error) {
	cursors, err := w.Ledger.Cursors(ctx, w.key.ChainID)
	if err != nil {
		return nil, err
	}
	var before *store.CursorState
	for i, c := range cursors {
		switch {
		case c.CursorKey == w.key && c.HasReadNothing():
			return nil, nil
		case c.CursorKey == w.key:
			return &c.Start, nil
		}
		if c.End == nil && (before == nil || c.MovedAt.After(before.MovedAt)) {
			before = &cursors[i]
		}
	}
	if before == nil {
		return nil, nil
	}
	start := before.Settled + 1
	if before.Settled == 0 {
		if start, err = w.Chain.BlockBefore(ctx, before.Next-min(before.Next, 1), unsettled); err != nil {
			return nil, fmt.Errorf("find the block from %s before block %d: %w", unsettled, before.Next, err)
		}
	}
	start = max(start, before.Start)
	w.log.Info("the registries have changed: continuing with the blocks that were not settled", "from", start)
	return &start, nil
}

const (
	// unsettled is the time span that is read again if the settled block is unknown.
	unsettled = time.Hour
	// commitPause is the time between two commits while only the cursor changes.
	commitPause = 10 * time.Second
)

// commitTimeout bounds the commit of a range and the dispatch of its deliveries.
const commitTimeout = 30 * time.Second

// isDeferrable reports whether a range needs no commit of its own: it has no events, replaces no blocks, and the last
// commit is younger than commitPause. The next commit moves the cursor over it; after a crash it is read again. The
// first range that ends at the head is not deferrable, because its commit ends deliveries whose events a reorg
// removed.
func (w *Watcher) isDeferrable(r chain.Range) bool {
	isLast := w.cursor.End != nil && r.To >= *w.cursor.End
	return len(r.Events) == 0 && r.From >= w.cursor.Next && !isLast && (w.atHead || !r.AtHead) &&
		time.Since(w.committed) < commitPause
}

// commitRange commits the events of a range together with the cursor. Deliveries of a watcher with an end are a
// backfill (Intake.Bulk) and give way to other deliveries.
func (w *Watcher) commitRange(ctx context.Context, r chain.Range) error {
	if w.isDeferrable(r) {
		return nil
	}
	if err := w.pace.wait(ctx); err != nil {
		return err
	}
	in := makeIntakes(w.key.ChainID, r.Events, w.Ends)
	from := min(r.From, w.cursor.Next) // deferred ranges are part of this one
	read := store.Advance{From: from, To: r.To, Head: r.Head, Finalized: r.Finalized, Settled: r.Settled, AtHead: r.AtHead,
		Intakes: in}
	if r.Checks != nil {
		checks, err := json.Marshal(r.Checks)
		if err != nil {
			return fmt.Errorf("encode the checks of chain %d: %w", w.key.ChainID, err)
		}
		read.Checks = checks
	}
	for _, a := range r.Anchors {
		read.Anchors = append(read.Anchors, store.Anchor(a))
	}
	// A signal ends the reading, but not a commit that has begun.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	done, err := w.Ledger.AdvanceCursor(ctx, &w.cursor, read)
	if err != nil {
		return err
	}
	if n := w.failure.times; n > 0 {
		w.failure = failure{}
		w.log.Info("the chain is read again", "to", r.To, "failures", n)
	}
	w.committed, w.atHead = time.Now(), r.AtHead
	w.pace.count(countQueued(done.Answers))
	if w.Dispatcher != nil {
		w.Dispatcher.Dispatch(ctx, done.Tasks)
	}
	for _, v := range done.Vanished {
		w.logVanished(v)
	}
	if w.Report != nil {
		w.Report(Report{To: r.To, Head: r.Head, Answers: done.Answers, Events: r.Events, Vanished: done.Vanished})
	}
	return nil
}

// acceptFound accepts logs of final blocks, which a node may have left out before, and returns how many of them are
// new. No reorg removes final blocks, so no cursor is needed.
func (w *Watcher) acceptFound(ctx context.Context, events []chain.RangeEvent) (unknown int, _ error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	for part := range slices.Chunk(makeIntakes(w.key.ChainID, events, w.Ends), store.MaxAccept) {
		answers, tasks, err := w.Ledger.Accept(ctx, part)
		if err != nil {
			return unknown, err
		}
		if w.Dispatcher != nil {
			w.Dispatcher.Dispatch(ctx, tasks)
		}
		for i, a := range answers {
			if a.Verdict == store.Accepted && part[i].Refused == "" {
				unknown++
			}
		}
	}
	return unknown, nil
}

// noteStall stores whether and why nothing is read, so that other processes can show it.
func (w *Watcher) noteStall(ctx context.Context, why error, since time.Time) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	var err error
	if why == nil {
		err = w.Ledger.NoteStall(ctx, w.key, nil, "")
	} else {
		err = w.Ledger.NoteStall(ctx, w.key, &since, why.Error())
	}
	if err != nil {
		w.log.Warn("it could not be stored whether the chain is read", "error", err)
	}
}

// makeIntakes returns one intake per event.
func makeIntakes(chainID uint64, events []chain.RangeEvent, bulk bool) []store.Intake {
	in := make([]store.Intake, len(events))
	for i, e := range events {
		in[i].Job, in[i].AgentChange, in[i].Source.Name = e.Job, describeChange(e.Event), store.SourceChain
		if e.Err != nil {
			in[i] = refuseLog(chainID, e)
		}
		in[i].Bulk = bulk
	}
	return in
}

// describeChange returns how an event changes its agent. A registration transfers the agent from the zero address to
// its first owner; that does not count as a transfer.
func describeChange(e erc8004.Event) (c store.AgentChange) {
	switch {
	case e.Kind == erc8004.BatchMetadataUpdate:
		c.LastID = e.LastID
	case e.Kind == erc8004.Transfer && e.From != (common.Address{}):
		c.From, c.To = e.From, e.To
	}
	return c
}

// countQueued counts the new deliveries. Agents are called only for these.
func countQueued(answers []store.Acceptance) (n int) {
	for _, a := range answers {
		if a.Verdict == store.Accepted && a.Status == store.Queued {
			n++
		}
	}
	return n
}

// logVanished logs the result for a delivery whose event a reorg removed.
func (w *Watcher) logVanished(v store.Vanished) {
	log := w.log.With("delivery", v.ID, "key", v.Key)
	switch {
	case v.Retraction != uuid.Nil:
		log.Info("a reorg removed the event, and the agent gets a retraction", "retraction", v.Retraction)
	case v.Called:
		log.Warn("a reorg took the event off the chain; the agent was called, and nothing takes an event of this kind back")
	case v.Cancelled:
		log.Info("a reorg took the event off the chain; it was not delivered and will not be")
	}
}

// refuseLog returns an intake for a log that becomes no job. There is no sender to answer, so the log becomes a
// rejected row. Its key is the event's, or, if the log has none, a hash of the log, which is the same each time.
func refuseLog(chainID uint64, e chain.RangeEvent) store.Intake {
	l := e.Log
	it := store.Intake{Job: job.Job{Kind: job.KindNewFeedback, ChainID: chainID},
		Refused: fmt.Sprintf("transaction %s, log %d: %v", l.TxHash, l.Index, e.Err)}
	if e.Event.Kind != "" {
		it.Job.Kind = job.Kind(e.Event.Kind)
	}
	if e.Event.Kind == erc8004.NewFeedback && e.Event.HasIndex || e.Event.Kind == erc8004.ResponseAppended ||
		e.Event.Kind == erc8004.FeedbackRevoked || e.Event.Kind == erc8004.ValidationResponse {
		index := l.Index
		it.Key = job.Job{Kind: it.Job.Kind, ChainID: chainID, ReputationRegistry: l.Address, ValidationRegistry: l.Address,
			AgentID: e.Event.AgentID, ClientAddress: e.Event.Client, FeedbackIndex: e.Event.FeedbackIndex,
			Responder: e.Event.Responder, RequestHash: e.Event.RequestHash, TransactionHash: l.TxHash, LogIndex: &index}.Key()
		return it
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s %d %s %x", chainID, l.Address, l.TxHash, l.Index, l.Topics, l.Data))
	it.Key = "invalid:" + hex.EncodeToString(sum[:])
	return it
}

func toAnchors(list []store.Anchor) []chain.Anchor {
	out := make([]chain.Anchor, len(list))
	for i, a := range list {
		out[i] = chain.Anchor(a)
	}
	return out
}
