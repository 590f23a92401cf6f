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

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/store"
)

// group is contracts at the same height. One follower reads them, and one transaction moves their cursors.
type group struct {
	cursors []*store.Cursor // in the order of their contracts; a backfill has one
	until   uint64          // the reading ends before this block; 0: it goes on
	height  atomic.Uint64   // the first block that was not read

	committed time.Time // time of the last commit
	atHead    bool      // the last committed range ended at the head
}

// mergeWithin is the distance in blocks at which two groups come together: the upper one waits while the other reads up
// to it.
const mergeWithin = 500

var (
	// errRegroup means that the contracts have to be grouped again.
	errRegroup = errors.New("the contracts of the chain are grouped again")
	// errFreeLock means that another process has stopped reading a contract.
	errFreeLock = errors.New("another process has stopped reading a contract")
)

// follow reads the contracts of the cursors that this process leads, from the cursors on.
func (w *Watcher) follow(ctx context.Context, led []store.CursorKey) error {
	w.told = ""
	for {
		cursors, err := w.openCursors(ctx, led)
		if err != nil {
			return err
		}
		err = w.readGroups(ctx, groupCursors(cursors), len(cursors) < len(led))
		if !errors.Is(err, errRegroup) {
			return err
		}
	}
}

// openCursors reads cursors, and creates those that do not exist. It asks a node for its head only for a cursor that
// has read nothing: the head of a halted chain, or of a node that is behind, is old. If the node has no head to start
// from, only the other cursors are returned.
func (w *Watcher) openCursors(ctx context.Context, keys []store.CursorKey) (all []*store.Cursor, err error) {
	listed, err := w.Ledger.Cursors(ctx, w.Chain.ChainID())
	if err != nil {
		return nil, err
	}
	isNew := func(key store.CursorKey) bool {
		return !slices.ContainsFunc(listed, func(c store.CursorState) bool { return c.CursorKey == key && !c.HasReadNothing() })
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
			w.log.Info("this contract was read before: continuing from there, the named first block is ignored", "contract", key.Contracts,
				"from", c.Next)
		}
		all = append(all, &c)
	}
	return all, nil
}

// restartUnread moves a cursor that has read nothing: to the configured first block, or, if reading begins at the
// head, down to the current head. When the cursor was created, a node may have named a head that never existed.
func (w *Watcher) restartUnread(ctx context.Context, c *store.Cursor, start uint64) error {
	if w.Ends || !c.HasReadNothing() || c.Start == start || w.From == nil && c.Start < start {
		return nil
	}
	w.log.Warn("nothing was read from the block at which reading was to begin: beginning at another one",
		"was", c.Start, "from", start)
	return w.Ledger.RestartCursor(ctx, c, start)
}

// groupCursors groups the cursors that are at the same height of the same branch.
func groupCursors(cursors []*store.Cursor) (groups []*group) {
	slices.SortFunc(cursors, func(a, b *store.Cursor) int { return strings.Compare(a.Contracts, b.Contracts) })
	for _, c := range cursors {
		i := slices.IndexFunc(groups, func(g *group) bool { return g.isLevel(c) })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &group{})
			groups[i].height.Store(c.Next)
		}
		groups[i].cursors = append(groups[i].cursors, c)
	}
	return groups
}

// isLevel reports whether the group is at the height of a cursor, and has read the same last block. A cursor that has
// read nothing has no last block.
func (g *group) isLevel(c *store.Cursor) bool {
	return g.height.Load() == c.Next && !slices.ContainsFunc(g.cursors, func(own *store.Cursor) bool {
		n, m := len(own.Anchors), len(c.Anchors)
		return n > 0 && m > 0 && own.Anchors[n-1] != c.Anchors[m-1]
	})
}

// readGroups reads groups at the same time. If two groups are close to each other, the lower one reads up to the other
// and readGroups returns errRegroup. Otherwise it returns errRegroup as soon as two groups have come close, or if a
// contract that has no cursor yet (isLate) can be added.
func (w *Watcher) readGroups(ctx context.Context, groups []*group, isLate bool) error {
	top, lower := uint64(0), atomic.Int32{}
	for _, g := range groups {
		top = max(top, g.height.Load())
	}
	isClose := func(a, b uint64) bool { return max(a, b)-min(a, b) <= mergeWithin }
	for _, g := range groups {
		if h := g.height.Load(); h < top && isClose(h, top) {
			g.until = top
			lower.Add(1)
		}
	}
	isMerging := lower.Load() > 0
	tasks, ctx := errgroup.WithContext(ctx)
	for _, g := range groups {
		if isMerging && g.height.Load() == top {
			continue // waits for the lower ones
		}
		tasks.Go(func() error {
			return w.readGroup(ctx, g, func(ctx context.Context, r chain.Range) (again time.Duration, err error) {
				if again, err = w.commitRange(ctx, g, r); err != nil {
					return 0, err
				}
				g.height.Store(r.To + 1)
				switch {
				case g.until > 0 && r.To+1 >= g.until && lower.Add(-1) <= 0:
					return 0, errRegroup
				case !isMerging && slices.ContainsFunc(groups, func(o *group) bool { return o != g && isClose(o.height.Load(), r.To+1) }):
					return 0, errRegroup
				}
				return again, nil
			})
		})
	}
	if others := w.listOthers(groups); len(others) > 0 {
		tasks.Go(func() error { return w.awaitContract(ctx, others, isLate) })
	}
	return tasks.Wait()
}

// listOthers returns the keys of the watcher's cursors that are in none of the groups.
func (w *Watcher) listOthers(groups []*group) []store.CursorKey {
	return slices.DeleteFunc(slices.Clone(w.keys), func(key store.CursorKey) bool {
		return slices.ContainsFunc(groups, func(g *group) bool { return g.contains(key) })
	})
}

func (g *group) contains(key store.CursorKey) bool {
	return slices.ContainsFunc(g.cursors, func(c *store.Cursor) bool { return c.CursorKey == key })
}

// awaitContract returns errRegroup when a node has a head from which contracts without a cursor can start (isLate), and
// errFreeLock when another process has stopped reading a contract of this watcher.
func (w *Watcher) awaitContract(ctx context.Context, others []store.CursorKey, isLate bool) error {
	tick := time.NewTicker(w.Standby)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if isLate {
			if _, err := w.Chain.StartHead(ctx); err == nil {
				return errRegroup
			}
		}
		free, err := w.Ledger.LeadChain(ctx, others, func(context.Context, []store.CursorKey) error { return nil })
		if err == nil && free {
			return errFreeLock
		}
	}
}

// readGroup reads a group until ctx ends, commit fails, or the last block of a backfill was committed.
func (w *Watcher) readGroup(ctx context.Context, g *group, commit commitFunc) error {
	g.committed, g.atHead = time.Time{}, false
	ahead := newReadAhead(commit)
	cfg := chain.FollowConfig{Deployment: w.Deployment, FromHead: w.From == nil, To: g.cursors[0].End, Limit: w.makeLimit(g),
		Poll: w.Poll, Limits: w.Limits, Handle: ahead.hand, From: g.cursors[0].Start,
		Found: func(ctx context.Context, events []chain.RangeEvent) (int, error) {
			return w.acceptFound(ctx, g, events)
		},
		Stalled: func(ctx context.Context, why error, since time.Time) { w.noteStall(ctx, g, why, since) }}
	for _, c := range g.cursors {
		for contract := range strings.SplitSeq(c.Contracts, ",") {
			cfg.Contracts = append(cfg.Contracts, common.HexToAddress(contract))
		}
		cfg.From, cfg.Finalized, cfg.Settled = min(cfg.From, c.Start), max(cfg.Finalized, c.Finalized), max(cfg.Settled, c.Settled)
		if len(c.Anchors) > 0 && (len(cfg.Anchors) == 0 || c.Anchors[0].Number < cfg.Anchors[0].Number) {
			cfg.Anchors = toAnchors(c.Anchors)
		}
		var checks *chain.Checks
		if c.Checks != nil {
			if err := json.Unmarshal(c.Checks, &checks); err != nil {
				return fmt.Errorf("decode the checks of chain %d: %w", c.ChainID, err)
			}
		}
		cfg.Checks = mergeChecks(cfg.Checks, checks)
	}
	f, err := w.Chain.NewFollower(cfg)
	if err != nil {
		return err
	}
	w.logBegin(g)
	return ahead.run(ctx, f.Follow)
}

// logBegin logs that a group is read, unless the reading failed before.
func (w *Watcher) logBegin(g *group) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failure.times == 0 {
		w.log.Info("reading the chain", "from", g.height.Load(), "contracts", len(g.cursors))
	}
}

// makeLimit returns the limit of a group's follower: a group that is about to meet another one ends below it, and no
// contract is read further than the identity contract, so that a moved agent is noticed in time. It returns nil if
// there is no limit.
func (w *Watcher) makeLimit(g *group) func(context.Context) (uint64, error) {
	identity := store.CursorKey{ChainID: w.Chain.ChainID(), Contracts: strings.ToLower(w.Deployment.Identity.Hex())}
	follows := !w.Ends && w.Deployment.Identity != (common.Address{}) && !g.contains(identity)
	if !follows && g.until == 0 {
		return nil
	}
	last := g.until - 1 // without until, the largest number
	return func(ctx context.Context) (uint64, error) {
		if !follows {
			return last, nil
		}
		cursors, err := w.Ledger.Cursors(ctx, identity.ChainID)
		if err != nil {
			return 0, err
		}
		i := slices.IndexFunc(cursors, func(c store.CursorState) bool { return c.CursorKey == identity })
		if i < 0 || cursors[i].Next == 0 {
			return 0, nil
		}
		return min(last, cursors[i].Next-1), nil
	}
}

// mergeChecks returns the checks of a group with those of one more contract: a block is checked if it is checked for
// each of them. One of a and b may be nil: its contract has read nothing, or all of its blocks are checked.
func mergeChecks(a, b *chain.Checks) *chain.Checks {
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
