// Package watch brings a chain's events into the store: it joins chain.Follower, which reads them, with the cursor of
// the store, which moves in the transaction that commits their jobs.
//
// What does not live here: reading and decoding logs (chain, erc8004), the rows and the verdicts (store), what becomes of
// an accepted delivery (delivery).
//
// Invariants: one process at a time reads a chain's registries (an advisory lock of Postgres); a second one that still
// does, because its connection is gone, commits nothing (the cursor is compared). A log that makes no job becomes a
// rejected row, and the cursor moves on.
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
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/google/uuid"
)

// Ledger is the store as a watcher needs it.
type Ledger interface {
	LeadChain(ctx context.Context, key store.CursorKey, do func(context.Context) error) (bool, error)
	OpenCursor(ctx context.Context, key store.CursorKey, start uint64, end *uint64) (store.Cursor, error)
	RestartCursor(ctx context.Context, c *store.Cursor, start uint64) error
	AdvanceCursor(ctx context.Context, c *store.Cursor, a store.Advance) (store.Advanced, error)
	Cursors(ctx context.Context, chainID uint64) ([]store.CursorState, error)
	NoteStall(ctx context.Context, key store.CursorKey, since *time.Time, why string) error
	Acceptor
}

// Dispatcher puts tasks into Redis and returns how many it took.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []store.Task) int
}

// Config says what is read, and where it goes.
type Config struct {
	Chain      *chain.Client
	Deployment erc8004.Deployment // the registries whose events are read
	Ledger     Ledger
	Dispatcher Dispatcher // nil: the worker's reconciler dispatches (no Redis at hand)
	Limits     job.Limits

	// From is the first block that is read when there is no cursor yet. nil: the node's newest then.
	From *uint64
	// Ends says that the watcher ends when the last block is read: To, or if that is nil the node's newest when it was
	// begun. It needs From. Else the chain is followed for ever.
	Ends bool
	To   *uint64
	// Rate is how many deliveries a second may be new while the watcher has an end: a backfill's. 0: as many as it reads.
	Rate float64
	// Poll is the pause between questions at the head. Default 2 s.
	Poll time.Duration
	// Standby is the pause before another look at whether whoever reads the chain still does, and after a failure of
	// the store. Default 3 s.
	Standby time.Duration

	// Report is told of what was committed. It must not block for long. Optional.
	Report func(Report)
	Logger *slog.Logger // default slog.Default()
}

// Report is what one range of blocks came to.
type Report struct {
	To, Head uint64 // the last block that was read, and the node's newest
	Answers  []store.Acceptance
	Events   []chain.RangeEvent // one for each of Answers; with Err: a log that makes no job
	Vanished []store.Vanished
}

// Watcher reads one chain. Run it once.
type Watcher struct {
	Config
	key    store.CursorKey
	cursor store.Cursor

	committed time.Time // when the cursor was committed last
	atHead    bool      // that range ended at the head

	pace pace
	told string // why nothing is read, as it was logged last
	log  *slog.Logger

	failure failure // since a range was committed
}

// New checks the configuration.
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
		return nil, errors.New("watch: Rate is negative, or of what has no end")
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

// Key names the watcher's cursor.
func (w *Watcher) Key() store.CursorKey { return w.key }

// Run reads until ctx ends, or the last block is read: then it returns nil. While the node, the store or the lead is
// away it waits and says so.
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

// tellOnce logs why nothing is read, unless it did.
func (w *Watcher) tellOnce(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != w.told {
		w.told = text
		w.log.Warn(text)
	}
}

// failure is why a chain cannot be read.
type failure struct {
	cause  string        // the innermost error: those around it name blocks, which change while the chain grows
	times  int           // in a row
	logged time.Time     // the last line
	pause  time.Duration // from that line to the next
}

const (
	// firstRepeat is the time after which a lasting failure is logged again. It doubles up to lastRepeat.
	firstRepeat = time.Minute
	lastRepeat  = time.Hour
)

// noteFailure logs why the chain cannot be read. A lasting failure is logged again at growing intervals.
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
		w.log.Warn("this chain was watched before: going on from there, whatever block to begin with is named", "from", w.cursor.Next)
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

// restartUnread moves a cursor that has read nothing: to the block that is to be read first now, or, where that is the
// head, down to it. A node may have named a head that never was when the cursor was made.
func (w *Watcher) restartUnread(ctx context.Context, start uint64) error {
	if w.Ends || !w.cursor.HasReadNothing() || w.cursor.Start == start || w.From == nil && w.cursor.Start < start {
		return nil
	}
	w.log.Warn("nothing was read from the block at which reading was to begin: beginning at another one",
		"was", w.cursor.Start, "from", start)
	return w.Ledger.RestartCursor(ctx, &w.cursor, start)
}

// findStart finds the block to begin with. It returns the start of a cursor that has read something, and asks no node
// for a head: the head of a halted chain, and of a node that is behind, is old. If the chain was followed with other
// registries, it returns the first block that was not settled then. nil: the head.
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
	w.log.Info("the registries are others than before: going on with what was not settled then", "from", start)
	return &start, nil
}

const (
	// unsettled is the time whose blocks are read again where it is unknown which of them are settled.
	unsettled = time.Hour
	// commitPause is the time between two commits while nothing but the cursor changes.
	commitPause = 10 * time.Second
)

// commitTimeout bounds the commit of a range and the dispatch of its deliveries.
const commitTimeout = 30 * time.Second

// isDeferrable reports whether a range needs no commit of its own: it has no events, replaces no blocks, and the last
// commit is younger than commitPause. The next commit moves the cursor over it; after a crash it is read again. The
// first range that ends at the head is not deferrable: its commit ends deliveries whose events a reorg removed.
func (w *Watcher) isDeferrable(r chain.Range) bool {
	isLast := w.cursor.End != nil && r.To >= *w.cursor.End
	return len(r.Events) == 0 && r.From >= w.cursor.Next && !isLast && (w.atHead || !r.AtHead) &&
		time.Since(w.committed) < commitPause
}

// commitRange commits what a range holds together with the cursor. What has an end is a backfill, whose deliveries give
// way to others.
func (w *Watcher) commitRange(ctx context.Context, r chain.Range) error {
	if w.isDeferrable(r) {
		return nil
	}
	if err := w.pace.wait(ctx); err != nil {
		return err
	}
	in := makeIntakes(w.key.ChainID, r.Events, w.Ends)
	from := min(r.From, w.cursor.Next) // ranges that were not committed are part of this one
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
	// A signal ends the reading, not a commit that has begun.
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

// acceptFound accepts logs of final blocks, which a node may have left out before, and returns how many of them are new.
// No reorg takes them off the chain, so the cursor does not matter.
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

// noteStall keeps in the store that nothing is read, so that other processes can show why.
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

// makeIntakes makes an intake of each event.
func makeIntakes(chainID uint64, events []chain.RangeEvent, bulk bool) []store.Intake {
	in := make([]store.Intake, len(events))
	for i, e := range events {
		in[i].Job, in[i].AgentChange = e.Job, describeChange(e.Event)
		if e.Err != nil {
			in[i] = refuseLog(chainID, e.Log, e.Err)
		}
		in[i].Bulk = bulk
	}
	return in
}

// describeChange says what an event tells of its agent besides that it changed. A registration gives an agent from
// nobody to its first owner: that is no transfer.
func describeChange(e erc8004.Event) (c store.AgentChange) {
	switch {
	case e.Kind == erc8004.BatchMetadataUpdate:
		c.LastID = e.LastID
	case e.Kind == erc8004.Transfer && e.From != (common.Address{}):
		c.From, c.To = e.From, e.To
	}
	return c
}

// countQueued counts the new deliveries: agents are called for nothing else.
func countQueued(answers []store.Acceptance) (n int) {
	for _, a := range answers {
		if a.Verdict == store.Accepted && a.Status == store.Queued {
			n++
		}
	}
	return n
}

// logVanished says what became of a delivery whose event a reorg took off the chain.
func (w *Watcher) logVanished(v store.Vanished) {
	log := w.log.With("delivery", v.ID, "key", v.Key)
	switch {
	case v.Retraction != uuid.Nil:
		log.Info("a reorg took the event off the chain, and the agent is told", "retraction", v.Retraction)
	case v.Called:
		log.Warn("a reorg took the event off the chain; the agent was called, and nothing takes an event of this kind back")
	case v.Cancelled:
		log.Info("a reorg took the event off the chain; it was not delivered and will not be")
	}
}

// refuseLog is the intake of a log that makes no job. Nobody is there to be answered, so it becomes a rejected row,
// under a key that the same log has whenever it is read.
func refuseLog(chainID uint64, l types.Log, why error) store.Intake {
	kind := job.KindNewFeedback
	if e, err := erc8004.Decode(l); err == nil {
		kind = job.Kind(e.Kind)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s %d %s %x", chainID, l.Address, l.TxHash, l.Index, l.Topics, l.Data))
	return store.Intake{Job: job.Job{Kind: kind, ChainID: chainID}, Key: "invalid:" + hex.EncodeToString(sum[:]),
		Refused: fmt.Sprintf("transaction %s, log %d: %v", l.TxHash, l.Index, why)}
}

func toAnchors(list []store.Anchor) []chain.Anchor {
	out := make([]chain.Anchor, len(list))
	for i, a := range list {
		out[i] = chain.Anchor(a)
	}
	return out
}
