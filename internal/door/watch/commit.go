package watch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

const (
	// commitPolls times Config.Poll is the time between two commits while only the cursors change.
	commitPolls = 5
	// commitTimeout bounds the commit of a range and the dispatch of its deliveries.
	commitTimeout = 30 * time.Second
)

// deferCommit returns how long the commit of a range can be deferred: 0 if it has events, replaces blocks, or
// commitPolls have passed since the last commit. A later commit moves the cursors over a deferred range; after a crash
// it is read again. The first range that ends at the head is not deferred, because its commit ends deliveries whose
// events a reorg removed.
func (w *Watcher) deferCommit(g *group, r follower.Range) time.Duration {
	end := g.cursors[0].End
	isLast := end != nil && r.To >= *end || r.To == g.limit.Load()
	if len(r.Events) > 0 || r.From < g.cursors[0].Next || isLast || r.AtHead && !g.atHead {
		return 0
	}
	return max(commitPolls*w.Poll-time.Since(g.committed), 0)
}

// commitRange commits the events of a range together with the group's cursors, or returns for how long it defers that.
// Deliveries of a watcher with an end are a backfill (Intake.Bulk) and give way to other deliveries.
func (w *Watcher) commitRange(ctx context.Context, g *group, r follower.Range) (again time.Duration, _ error) {
	r.Events = g.dropEarly(r.Events)
	if again := w.deferCommit(g, r); again > 0 {
		return again, nil
	}
	if err := w.pace.awaitRoom(ctx); err != nil {
		return 0, err
	}
	in := makeIntakes(w.Chain.ChainID(), r.Events, w.Ends)
	filters := w.applyFilters(in)
	if r.From < g.cursors[0].Next || g.goal == 0 {
		g.goal = r.Head
	}
	// A group that another contract limits may never reach the head of a fast chain.
	isComplete := r.AtHead || g.limit.Load() > 0 && !r.Rereads && r.To >= g.goal
	from := min(r.From, g.cursors[0].Next) // deferred ranges are part of this one
	read := store.Advance{From: from, To: r.To, Head: r.Head, Finalized: r.Finalized,
		Settled: r.Settled, AtHead: isComplete, Intakes: in}
	if r.Checks != nil {
		checks, err := json.Marshal(r.Checks)
		if err != nil {
			return 0, fmt.Errorf("encode the checks of chain %d: %w", w.Chain.ChainID(), err)
		}
		read.Checks = checks
	}
	for _, a := range r.Anchors {
		read.Anchors = append(read.Anchors, cursor.Anchor(a))
	}
	if end := g.cursors[0].End; end != nil && r.To >= *end {
		w.ending = true
	}
	// A signal ends the reading, but not a commit that has begun.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	done, err := w.Ledger.AdvanceCursors(ctx, g.cursors, read)
	if err != nil {
		return 0, err
	}
	g.committed, g.atHead = time.Now(), r.AtHead
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.failure.times; n > 0 {
		w.failure = failure{}
		w.log.Info("the chain is read again", "to", r.To, "failures", n)
	}
	w.pace.countJobs(countQueued(done.Answers))
	for i, a := range done.Answers {
		if a.Verdict == ledger.Accepted && a.Status == outcome.Skipped && w.CountFiltered != nil {
			w.CountFiltered(filters[i])
		}
	}
	if w.Dispatcher != nil {
		w.Dispatcher.Dispatch(ctx, done.Tasks)
	}
	for _, v := range done.Vanished {
		w.logVanished(v)
	}
	if w.Report != nil {
		w.Report(Report{To: r.To, Head: r.Head, Answers: done.Answers, Events: r.Events, Vanished: done.Vanished})
	}
	return 0, nil
}

// dropEarly drops events of blocks before the start of their contract's cursor, in place. The contract was added later
// than others of the group, and a deep reorg makes the group read these blocks again.
func (g *group) dropEarly(events []eventlog.Entry) []eventlog.Entry {
	return slices.DeleteFunc(events, func(e eventlog.Entry) bool {
		contract := strings.ToLower(e.Log.Address.Hex())
		return slices.ContainsFunc(g.cursors, func(c *cursor.Cursor) bool {
			return c.Contracts == contract && e.Log.BlockNumber < c.Start
		})
	})
}

// acceptFound accepts logs of final blocks, which a node may have left out before, and returns how many of them are
// new. No reorg removes final blocks, so no cursor is needed.
func (w *Watcher) acceptFound(ctx context.Context, g *group, events []eventlog.Entry) (unknown int, _ error) {
	in := makeIntakes(w.Chain.ChainID(), g.dropEarly(events), w.Ends)
	answers, err := acceptAll(ctx, w.Ledger, w.Dispatcher, in)
	for i, a := range answers {
		if a.Verdict == ledger.Accepted && in[i].Refused == "" {
			unknown++
		}
	}
	return unknown, err
}

// acceptAll commits jobs without a cursor, and dispatches them.
func acceptAll(ctx context.Context, l Ledger, d Dispatcher,
	in []ledger.Intake) (answers []ledger.Acceptance, _ error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	for part := range slices.Chunk(in, ledger.MaxAccept) {
		got, tasks, err := l.Accept(ctx, part)
		if err != nil {
			return answers, err
		}
		answers = append(answers, got...)
		if d != nil {
			d.Dispatch(ctx, tasks)
		}
	}
	return answers, nil
}

// noteStall stores whether and why nothing is read, so that other processes can show it.
func (w *Watcher) noteStall(ctx context.Context, g *group, why error, since time.Time) {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	at, text := &since, fmt.Sprint(why)
	if why == nil {
		at, text = nil, ""
	}
	for _, c := range g.cursors {
		if err := w.Ledger.NoteStall(ctx, c.Key, at, text); err != nil {
			w.log.Warn("it could not be stored whether the chain is read", "error", err)
		}
	}
}

// makeIntakes returns one intake per event.
func makeIntakes(chainID uint64, events []eventlog.Entry, bulk bool) []ledger.Intake {
	in := make([]ledger.Intake, len(events))
	for i, e := range events {
		in[i].Job, in[i].AgentChange, in[i].Source.Name = e.Job, describeChange(e.Event), ledger.SourceChain
		if e.Err != nil {
			in[i] = refuseLog(chainID, e)
		}
		in[i].Bulk = bulk
	}
	return in
}

// applyFilters sets Intake.Filtered of the events that the default policy skips, and returns the filters that skip
// them. The events of a range are remembered, so that a reorg finds them; other events are left to the check of a
// worker.
func (w *Watcher) applyFilters(in []ledger.Intake) []policy.Decision {
	filters := make([]policy.Decision, len(in))
	for i := range in {
		if w.Filter != nil && in[i].Refused == "" {
			filters[i], in[i].Filtered = w.Filter(in[i].Job)
		}
	}
	return filters
}

// describeChange returns how an event changes its agent. A registration transfers the agent from the zero address to
// its first owner; that does not count as a transfer.
func describeChange(e erc8004.Event) (c ledger.AgentChange) {
	switch {
	case e.Kind == erc8004.BatchMetadataUpdate:
		c.LastID = e.LastID
	case e.Kind == erc8004.Transfer && e.From != (common.Address{}):
		c.From, c.To = e.From, e.To
	}
	return c
}

// countQueued counts the new deliveries. Agents are called only for these.
func countQueued(answers []ledger.Acceptance) (n int) {
	for _, a := range answers {
		if a.Verdict == ledger.Accepted && a.Status == outcome.Queued {
			n++
		}
	}
	return n
}

// logVanished logs the result for a delivery whose event a reorg removed.
func (w *Watcher) logVanished(v ledger.Vanished) {
	log := w.log.With("delivery", v.ID, "key", v.Key)
	switch {
	case v.Retraction != uuid.Nil:
		log.Info("a reorg removed the event, and the agent gets a retraction", "retraction", v.Retraction)
	case v.Called:
		log.Warn("a reorg took the event off the chain; the agent was called, and gets no retraction")
	case v.Cancelled:
		log.Info("a reorg took the event off the chain; it was not delivered and will not be")
	}
}

// refuseLog returns an intake for a log that becomes no job. There is no sender to answer, so the log becomes a
// rejected row. Its key is the event's, or, if the log has none, a hash of the log, which is the same each time.
func refuseLog(chainID uint64, e eventlog.Entry) ledger.Intake {
	l := e.Log
	it := ledger.Intake{Job: job.Job{Kind: job.KindNewFeedback, ChainID: chainID},
		Refused: fmt.Sprintf("transaction %s, log %d: %v", l.TxHash, l.Index, e.Err)}
	if e.Event.Kind != "" {
		it.Job.Kind = job.Kind(e.Event.Kind)
	}
	if e.Event.Kind == erc8004.NewFeedback && e.Event.HasIndex || e.Event.Kind == erc8004.ResponseAppended ||
		e.Event.Kind == erc8004.FeedbackRevoked || e.Event.Kind == erc8004.ValidationResponse {
		index := l.Index
		it.Key = job.Job{Kind: it.Job.Kind, ChainID: chainID, ReputationRegistry: l.Address,
			ValidationRegistry: l.Address, AgentID: e.Event.AgentID, ClientAddress: e.Event.Client,
			FeedbackIndex: e.Event.FeedbackIndex, Responder: e.Event.Responder, RequestHash: e.Event.RequestHash,
			TransactionHash: l.TxHash, LogIndex: &index}.Key()
		return it
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s %d %s %x", chainID, l.Address, l.TxHash, l.Index, l.Topics, l.Data))
	it.Key = "invalid:" + hex.EncodeToString(sum[:])
	return it
}

func toAnchors(list []cursor.Anchor) []follower.Anchor {
	out := make([]follower.Anchor, len(list))
	for i, a := range list {
		out[i] = follower.Anchor(a)
	}
	return out
}

// AcceptTransaction accepts the events of one transaction, whether its chain is followed or not. It uses cfg's Chain,
// Deployment, Ledger, Limits and Dispatcher. It does not watch for reorgs: if an event is gone when its delivery gets
// its turn, the delivery is refused.
func AcceptTransaction(ctx context.Context, cfg Config, hash common.Hash) (Report, error) {
	events, block, err := cfg.Chain.ReadTransaction(ctx, hash, cfg.Deployment, cfg.Limits)
	if err != nil {
		return Report{}, err
	}
	r := Report{To: block, Head: block, Events: events}
	r.Answers, err = acceptAll(ctx, cfg.Ledger, cfg.Dispatcher, makeIntakes(cfg.Chain.ChainID(), events, false))
	return r, err
}
