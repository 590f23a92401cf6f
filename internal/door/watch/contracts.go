package watch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"golang.org/x/sync/errgroup"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/store/cursor"
)

// group is contracts at the same height. One follower reads them, and one transaction moves their cursors.
type group struct {
	cursors []*cursor.Cursor // in the order of their contracts; a backfill has one
	limit   atomic.Uint64    // the last block that may be read now; 0: no other contract limits it

	committed time.Time // time of the last commit
	atHead    bool      // the last committed range ended at the head
	goal      uint64    // the head at the time of the first commit, or of the last one that replaced blocks
}

// errRegroup means that the cursors have to be read and grouped again.
var errRegroup = errors.New("the contracts of the chain are grouped again")

// follow reads the contracts of the cursors that this process leads, from the cursors on. Groups are read at the same
// time. It returns errRegroup when contracts have come to the same height, or when one more can be read.
func (w *Watcher) follow(ctx context.Context, led []cursor.Key) error {
	w.told = ""
	cursors, err := w.openCursors(ctx, led)
	if err != nil || len(cursors) == 0 {
		return err
	}
	tasks, ctx := errgroup.WithContext(ctx)
	for _, g := range groupCursors(cursors) {
		tasks.Go(func() error { return w.readGroup(ctx, g, slices.Contains(led, w.first)) })
	}
	if len(cursors) < len(w.keys) {
		tasks.Go(func() error { return w.awaitContract(ctx, led, len(cursors) < len(led)) })
	}
	return tasks.Wait()
}

// openCursors reads cursors, and creates those that do not exist. It asks a node for its head only for a cursor that
// has read nothing: the head of a halted chain, or of a node that is behind, is old. If the node has no head to start
// from, only the other cursors are returned. None is returned if the last block of the backfill was committed.
func (w *Watcher) openCursors(ctx context.Context, keys []cursor.Key) (all []*cursor.Cursor, err error) {
	listed, err := w.Ledger.Cursors(ctx, w.Chain.ChainID())
	if err != nil {
		return nil, err
	}
	if w.ending && !slices.ContainsFunc(listed, func(c cursor.State) bool { return c.Key == w.first }) {
		return nil, nil // only the answer to the commit was lost
	}
	isNew := func(key cursor.Key) bool {
		return !slices.ContainsFunc(listed,
			func(c cursor.State) bool { return c.Key == key && !c.HasReadNothing() })
	}
	start, end := w.From, w.To
	if slices.ContainsFunc(keys, isNew) && (start == nil || w.Ends && end == nil) {
		head, err := w.Chain.StartHead(ctx)
		if err != nil {
			if keys = slices.DeleteFunc(slices.Clone(keys), isNew); len(keys) == 0 {
				return nil, fmt.Errorf("ask where the chain ends: %w", err)
			}
			w.tellOnce("new contracts wait for a block to begin with: %v", err)
		}
		if start == nil {
			start = &head
		}
		if w.Ends && end == nil {
			if head < *start {
				return nil, fmt.Errorf("the backfill begins with block %d, and the chain ends with %d", *start, head)
			}
			end = &head
		}
	}
	for _, key := range keys {
		from := uint64(0) // not used for a cursor that exists
		if start != nil {
			from = *start
		}
		c, err := w.Ledger.OpenCursor(ctx, key, from, end)
		if err == nil && start != nil && isNew(key) {
			err = w.restartUnread(ctx, &c, from)
		}
		if err != nil {
			return nil, err
		}
		if w.From != nil && c.Start != *w.From {
			w.log.Info("this contract was read before: continuing from there, the named first block is ignored",
				"contract", key.Contracts, "from", c.Next)
		}
		all = append(all, &c)
	}
	return all, nil
}

// restartUnread moves a cursor that has read nothing: to the configured first block, or, if reading begins at the
// head, down to the current head. When the cursor was created, a node may have named a head that never existed.
func (w *Watcher) restartUnread(ctx context.Context, c *cursor.Cursor, start uint64) error {
	if w.Ends || !c.HasReadNothing() || c.Start == start || w.From == nil && c.Start < start {
		return nil
	}
	w.log.Warn("nothing was read from the block at which reading was to begin: beginning at another one",
		"was", c.Start, "from", start)
	return w.Ledger.RestartCursor(ctx, c, start)
}

// groupCursors groups the cursors that are at the same height of the same branch.
func groupCursors(cursors []*cursor.Cursor) (groups []*group) {
	slices.SortFunc(cursors, func(a, b *cursor.Cursor) int { return strings.Compare(a.Contracts, b.Contracts) })
	for _, c := range cursors {
		i := slices.IndexFunc(groups, func(g *group) bool { return g.isLevel(c) })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &group{})
		}
		groups[i].cursors = append(groups[i].cursors, c)
	}
	return groups
}

// isLevel reports whether the group is at the height of a cursor, and has read the same last block. A cursor that has
// read nothing has no last block.
func (g *group) isLevel(c *cursor.Cursor) bool {
	return !slices.ContainsFunc(g.cursors, func(own *cursor.Cursor) bool {
		n, m := len(own.Anchors), len(c.Anchors)
		return own.Next != c.Next || n > 0 && m > 0 && own.Anchors[n-1] != c.Anchors[m-1]
	})
}

// awaitContract returns errRegroup when another process has stopped reading a contract of this watcher, or when a node
// has a head from which contracts without a cursor can start (isLate).
func (w *Watcher) awaitContract(ctx context.Context, led []cursor.Key, isLate bool) error {
	others := slices.DeleteFunc(slices.Clone(w.keys),
		func(key cursor.Key) bool { return slices.Contains(led, key) })
	for range loop.Every(ctx, w.Standby) {
		if isLate {
			if _, err := w.Chain.StartHead(ctx); err == nil {
				return errRegroup
			}
		}
		free, err := w.Ledger.LeadChain(ctx, others, func(context.Context, []cursor.Key) error { return nil })
		if err == nil && free {
			return errRegroup
		}
	}
	return ctx.Err()
}

// readGroup reads a group until ctx ends, a commit fails, or the last block of a backfill was committed. It returns
// errRegroup when the group has come to the height of the first contract, if this process leads that too (meets).
func (w *Watcher) readGroup(ctx context.Context, g *group, meets bool) error {
	limit := w.makeLimit(g)
	ahead := newReadAhead(func(ctx context.Context, r follower.Range) (time.Duration, error) {
		again, err := w.commitRange(ctx, g, r)
		if err == nil && limit != nil && meets && r.To == g.limit.Load() {
			err = errRegroup
		}
		return again, err
	})
	cfg := follower.Config{Deployment: w.Deployment, FromHead: w.From == nil, To: g.cursors[0].End, Limit: limit,
		Poll: w.Poll, Limits: w.Limits, Handle: ahead.handRange, From: g.cursors[0].Start,
		Found: func(ctx context.Context, events []eventlog.Entry) (int, error) {
			return w.acceptFound(ctx, g, events)
		},
		Stalled: func(ctx context.Context, why error, since time.Time) { w.noteStall(ctx, g, why, since) }}
	for _, c := range g.cursors {
		for contract := range strings.SplitSeq(c.Contracts, ",") {
			cfg.Contracts = append(cfg.Contracts, common.HexToAddress(contract))
		}
		cfg.From = min(cfg.From, c.Start)
		cfg.Finalized, cfg.Settled = max(cfg.Finalized, c.Finalized), max(cfg.Settled, c.Settled)
		cfg.RereadTo = max(cfg.RereadTo, c.Orphaned)
		if len(c.Anchors) > 0 && (len(cfg.Anchors) == 0 || c.Anchors[0].Number < cfg.Anchors[0].Number) {
			cfg.Anchors = toAnchors(c.Anchors)
		}
		var checks *follower.Checks
		if c.Checks != nil {
			if err := json.Unmarshal(c.Checks, &checks); err != nil {
				return fmt.Errorf("decode the checks of chain %d: %w", c.ChainID, err)
			}
		}
		cfg.Checks = mergeChecks(cfg.Checks, checks)
	}
	w.logBegin(g)
	return ahead.run(ctx, follower.New(w.Chain, cfg).Follow)
}

// logBegin logs that a group is read, unless the reading failed before.
func (w *Watcher) logBegin(g *group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure.times == 0 {
		w.log.Info("reading the chain", "from", g.cursors[0].Next, "contracts", len(g.cursors))
	}
}

// makeLimit returns the limit of a group's follower: no contract is read further than the first one. It returns nil if
// there is no limit.
func (w *Watcher) makeLimit(g *group) func(context.Context) (uint64, error) {
	if slices.ContainsFunc(g.cursors, func(c *cursor.Cursor) bool { return c.Key == w.first }) {
		return nil
	}
	return func(ctx context.Context) (uint64, error) {
		cursors, err := w.Ledger.Cursors(ctx, w.first.ChainID)
		i := slices.IndexFunc(cursors, func(c cursor.State) bool { return c.Key == w.first })
		if i < 0 || cursors[i].Next == 0 {
			return 0, err
		}
		g.limit.Store(cursors[i].Next - 1)
		return cursors[i].Next - 1, err
	}
}

// mergeChecks returns the checks of a group with those of one more contract: a block is checked if it is checked for
// each of them. One of a and b may be nil: its contract has read nothing, or all of its blocks are checked.
func mergeChecks(a, b *follower.Checks) *follower.Checks {
	if a == nil || b == nil {
		return cmp.Or(a, b)
	}
	merged := *a
	if b.Complete < a.Complete {
		merged.Complete, merged.Unchecked = b.Complete, b.Unchecked
	}
	merged.Share = min(a.Share, b.Share)
	if a.Omission == nil || b.Omission != nil && b.Omission.At.After(a.Omission.At) {
		merged.Omission = b.Omission
	}
	switch {
	case a.Recheck == nil:
		merged.Recheck = b.Recheck
	case b.Recheck != nil:
		merged.Recheck = &[2]uint64{min(a.Recheck[0], b.Recheck[0]), max(a.Recheck[1], b.Recheck[1])}
	}
	return &merged
}
