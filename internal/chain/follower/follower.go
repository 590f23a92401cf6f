package follower

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// Config configures a Follower.
type Config struct {
	// Deployment contains the chain's registries, which jobs name.
	Deployment erc8004.Deployment
	// Contracts are the contracts to follow. The default is all of the Deployment. One is needed: to a filter without
	// addresses, nodes return the events of all contracts.
	Contracts []common.Address
	// From is the first block to read.
	From uint64
	// FromHead means that From was the head when reading began. Follow returns ErrStartAboveHead if nothing was read
	// and the head stays below From.
	FromHead bool
	// Poll is the pause between two readings at the head, and after a failure. It must be positive.
	Poll time.Duration
	// Limits are passed to job.Make, which requires MaxTimeout.
	Limits job.Limits
	// Anchors are the Range.Anchors of an earlier Follower, oldest first. Reading resumes after the newest anchor
	// that is still canonical. Without anchors, it begins at From.
	Anchors []Anchor
	// Finalized and Settled are the values of an earlier Follower's last Range.
	Finalized, Settled uint64
	// RereadTo is the last block that an earlier Follower had still to read again after a reorg; 0: none.
	RereadTo uint64
	// To is the last block to read. Follow returns nil after it was handed over. By default, Follow runs until ctx
	// ends.
	To *uint64
	// Limit is optional. Blocks after the one that it returns are not read yet. If it returns an error, Follow ends.
	Limit func(context.Context) (uint64, error)
	// Checks are those of an earlier Follower's last Range. Nil means that it checked all blocks.
	Checks *Checks
	// Found receives logs of final blocks that are checked after an earlier Follower handed the blocks over, and
	// returns how many of the logs were unknown. It must be idempotent. By default, the logs are dropped.
	Found func(context.Context, []eventlog.Entry) (unknown int, err error)
	// Stalled is optional. It is called with the reason when the follower read nothing for a minute, and with nil
	// when it reads again.
	Stalled func(ctx context.Context, why error, since time.Time)
	// Handle receives a range of blocks with its events. A range that begins before the end of the previous one
	// replaces everything from there on: there was a reorg. Blocks are also handed over again after a failure, so
	// Handle must be idempotent. If it returns an error, Follow ends. It is required.
	Handle func(context.Context, Range) error
}

// Range is a range of consecutive blocks with its events.
type Range struct {
	From, To uint64           // the first and the last block
	Head     uint64           // the node's newest block when they were read
	Events   []eventlog.Entry // in the chain's order
	// Anchors are anchors of blocks that were handed over, ending with the block To. A later Follower resumes from
	// them.
	Anchors []Anchor
	// Rereads is true if blocks after To are still to be read again after a reorg. Their events may be on the chain,
	// although a node that lags has an older newest block.
	Rereads bool
	// AtHead is true if To is the newest block and Rereads is false, or if To is the last block to read. An event that
	// a reorg replaced and that was not found again up to To is no longer on the chain.
	AtHead bool
	// Finalized is the newest block that the nodes call final, read once a minute; 0 if they name none.
	Finalized uint64
	// Settled is a block that no reorg is expected to replace. It is settleAfter older than the finalized block, or
	// than the head if no block is finalized.
	Settled uint64
	// Checks describes which blocks were checked for logs that nodes left out. It is nil if the nodes are trusted or
	// if all blocks are checked before they are handed over.
	Checks *Checks
}

// Follower reads the registries' logs range by range and hands them over as jobs, in the chain's order. It uses
// eth_getLogs over any transport, so that it loses no events while a connection is down. Subscriptions to new blocks,
// on nodes with a websocket address, only make it ask sooner. docs/design/chain.md describes it.
type Follower struct {
	reader *eventlog.Reader
	cfg    Config
	filter eventlog.Filter
	log    *slog.Logger

	next  uint64     // the first block that was not handed over
	width rangeWidth // the number of blocks per request
	done  []Anchor   // the ends of the ranges that were handed over, oldest first

	finalized, settled uint64 // as in Range
	finalizedTime      uint64 // of the finalized block, in seconds; 0 if it is unknown
	finalizedAsked     time.Time
	// nil if the nodes are trusted, or if all blocks are checked before they are handed over
	checks *checker
	// Blocks below it are read again. They are checked before they are handed over, because events that they lack are
	// taken back.
	strictBefore uint64
	strict       rangeWidth // the number of blocks in a range whose blocks are all checked

	readAt  time.Time // when the chain was last read to its head, a range was handed over, or Follow began
	trouble error     // the reason why nothing was read since readAt
	stalled bool      // whether Stalled was last called with a reason

	watchHeads func(context.Context) (wake <-chan struct{}, stop func()) // Pool.WatchHeads; tests replace it

	headNode       int           // the number of the node that returned the last head
	lowSince       time.Time     // since when the head is below the blocks that were handed over; zero if it is not
	lowHeadTimeout time.Duration // the constant lowHeadTimeout; tests shorten it
}

// warnPause is the minimum time between two warnings about a node that does not answer, and between two lines about
// reorgs during a reading. The node may answer in between, and nodes on several branches may answer at one address.
const warnPause = time.Minute

// leastGap is the minimum time between the beginnings of two readings at the head, unless Poll is shorter. It is
// needed because a websocket announces each block, and some chains make several blocks a second.
const leastGap = time.Second

// finalizedPause is the time between two requests for the finalized block. A longer pause only delays the moment at
// which events count as settled.
const finalizedPause = time.Minute

// lowHeadTimeout is how long the follower waits for a head below the handed-over blocks to rise again, and the age up
// to which a head is new. Usually the node lags. But the head stays low if a node named a head that never existed, or
// if the chain was rolled back. A head that lags less passes the handed-over blocks within lowHeadTimeout.
const lowHeadTimeout = 30 * time.Second

// falseHeadTimeout is how long the follower waits for the blocks up to a node's head before it asks the other nodes for
// their heads first. Several nodes may answer at one address, and some of them lag for seconds.
const falseHeadTimeout = 30 * time.Second

// nearHead is the distance from the head at which a wide range ends, so that there is an anchor.
const nearHead = 50

// maxRangeEvents bounds the events that are handed over at once. A range with more events is read again in parts,
// down to one block.
const maxRangeEvents = 2000

var errManyEvents = fmt.Errorf("there are more than %d events", maxRangeEvents)

// ErrStartAboveHead means that the chain's head stays below the block at which reading began, so that this block was
// never the head.
var ErrStartAboveHead = errors.New("the chain's head stays below the block to begin with")

// New creates a follower. Call Follow to run it.
func New(r *eventlog.Reader, cfg Config) *Follower {
	if len(cfg.Contracts) == 0 {
		cfg.Contracts = cfg.Deployment.Contracts()
	}
	f := &Follower{reader: r, cfg: cfg, filter: eventlog.NewFilter(cfg.Contracts),
		log: r.Logger().With("chain", r.ChainID()), next: cfg.From, width: newRangeWidth(maxRange),
		strict: newRangeWidth(strictWidth), done: slices.Clone(cfg.Anchors), finalized: cfg.Finalized,
		settled: cfg.Settled, lowHeadTimeout: lowHeadTimeout, watchHeads: r.WatchHeads}
	if n := len(f.done); n > 0 {
		f.next = f.done[n-1].Number + 1
	}
	if cfg.RereadTo > 0 {
		f.strictBefore = cfg.RereadTo + 1
	}
	if !r.Trusted && cfg.To == nil {
		f.checks = newChecker(cfg.From, f.next, cfg.Checks)
	}
	return f
}

// Follow reads the chain until ctx ends, until Handle, Found or Limit fails, or until To is handed over. It returns the
// error, or nil after To. It returns ErrStartAboveHead if From was a head that never existed. If no node answers,
// Follow logs that and keeps trying.
func (f *Follower) Follow(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wake, stop := f.watchHeads(ctx)
	defer stop()
	gap := min(leastGap, f.cfg.Poll)
	var began, warned, reorged time.Time // when a reading began, and when a warning and a reorg were last logged
	away := false
	if f.readAt.IsZero() {
		f.readAt = time.Now()
	}
	for !f.isDone() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		case <-wake:
			_ = loop.Pause(ctx, time.Until(began.Add(gap))) // wakes during the pause are merged into this one
		}
		began = time.Now()
		more, err := f.readNext(ctx)
		if err == nil && f.checks != nil && (more || began.Sub(f.checks.asked) >= f.cfg.Poll) {
			f.checks.asked = began
			err = f.runChecks(ctx, began.Add(f.cfg.Poll))
		}
		var handed *handError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &handed):
			return handed.err
		case errors.Is(err, eventlog.ErrReorganised):
			if time.Since(reorged) >= warnPause {
				f.log.Info("the chain reorganised while it was read, reading again")
				reorged = time.Now()
			}
		case err != nil:
			if !away && time.Since(warned) >= warnPause {
				f.log.Warn("waiting for the node", "error", err)
				away, warned = true, time.Now()
			}
		case away:
			f.log.Info("the node answers again")
			away = false
		}
		f.reportStall(ctx, err)
		if more {
			timer.Reset(0)
		} else {
			timer.Reset(f.cfg.Poll)
		}
	}
	return nil
}

// runChecks checks some blocks. After an omission it also reads old blocks again, until the given time. A node that
// answers readings but no checks does not stop the readings: only errors of Found and Handle are returned.
func (f *Follower) runChecks(ctx context.Context, until time.Time) error {
	err := f.checkBlocks(ctx)
	for err == nil && f.checks.recheck != nil && time.Now().After(f.checks.recheckAfter) && ctx.Err() == nil {
		if err = f.recheckBlocks(ctx); time.Now().After(until) {
			break
		}
	}
	var handed *handError
	if err == nil || errors.As(err, &handed) {
		return err
	}
	f.log.Debug("blocks could not be checked for logs that were left out", "error", err)
	return nil
}

// stallAfter is the time without progress after which a follower reports a stall.
const stallAfter = time.Minute

// noteProgress records that the chain was read to its head, or that a range was handed over.
func (f *Follower) noteProgress() { f.readAt, f.trouble = time.Now(), nil }

// reportStall reports once that nothing was read for stallAfter, and once that reading resumed. err is the result of
// the newest reading.
func (f *Follower) reportStall(ctx context.Context, err error) {
	// The error that caused the node's rest is the better reason.
	if err != nil && (f.trouble == nil || !errors.Is(err, node.ErrResting)) {
		f.trouble = err
	}
	isStalled := f.trouble != nil && time.Since(f.readAt) >= stallAfter
	if isStalled == f.stalled {
		return
	}
	f.stalled = isStalled
	if isStalled {
		f.log.Error("the chain is not read", "since", f.readAt.UTC(), "error", f.trouble)
	} else {
		f.log.Info("the chain is read again")
	}
	if f.cfg.Stalled != nil {
		f.cfg.Stalled(ctx, f.trouble, f.readAt)
	}
}

// isDone reports whether the last block was handed over.
func (f *Follower) isDone() bool { return f.cfg.To != nil && f.next > *f.cfg.To }

// handError carries an error of Handle, Found or Limit through readNext.
type handError struct{ err error }

func (e *handError) Error() string { return e.err.Error() }

// readNext reads one range. Unless there was a reorg, it needs two requests with seven calls. more is true if the
// range did not reach the head.
func (f *Follower) readNext(ctx context.Context) (more bool, err error) {
	f.askFinalized(ctx) // first, because it demotes nodes whose head is old
	head, last, err := f.readHead(ctx)
	if err != nil {
		return false, err
	}
	if f.awaitsHead(head) {
		return false, nil
	}
	if err := f.rewindToCanonical(ctx, last); err != nil {
		return false, err
	}
	if uint64(head.Number) < f.next {
		if err := f.checkStart(uint64(head.Number)); err != nil {
			return false, err
		}
		f.noteProgress()
		return false, nil
	}
	to := min(f.next+f.width.blocks-1, uint64(head.Number))
	if to == uint64(head.Number) && to-f.next >= strictWidth {
		to -= nearHead // then a reorg of the newest blocks does not make the follower read the whole range again
	}
	if f.cfg.Limit != nil {
		limit, err := f.cfg.Limit(ctx)
		if err != nil {
			return false, &handError{err}
		}
		if limit < f.next {
			f.noteProgress()
			return false, nil
		}
		to = min(to, limit)
	}
	if f.cfg.To != nil {
		to = min(to, *f.cfg.To)
	}
	isStrict := f.isStrict()
	if isStrict {
		to = min(to, f.next+f.strict.blocks-1)
		if to < uint64(head.Number) && f.next < f.strictBefore {
			to = min(to, f.strictBefore-1) // new blocks are checked only in the range that reaches the head
		}
	}
	logs, ends, err := f.readRangeLogs(ctx, to, head)
	if isStrict {
		f.strict.noteRange(err, to-f.next+1)
	}
	if err != nil {
		if errors.Is(err, node.ErrNoBlock) && time.Since(f.readAt) >= falseHeadTimeout {
			f.reader.NoteFalseHead(f.headNode)
		}
		return f.narrowRange(err, to-f.next+1)
	}
	if len(logs) > maxRangeEvents && to > f.next {
		f.width.narrow(errManyEvents, to-f.next+1)
		return true, nil
	}
	r := Range{From: f.next, To: to, Head: uint64(head.Number)}
	if r.Events, err = f.reader.MakeEntries(ctx, logs, f.cfg.Deployment, f.cfg.Limits); err != nil {
		return false, err
	}
	r.Rereads = r.To+1 < f.strictBefore
	r.AtHead = r.To == r.Head && !r.Rereads || f.cfg.To != nil && r.To == *f.cfg.To
	anchors := append(slices.Clone(f.done), Anchor{r.To, ends.Last.Hash, uint64(ends.Last.Time)})
	r.Finalized, r.Settled = f.finalized, f.findSettledBlock(anchors, head)
	r.Anchors = thinAnchors(anchors, r.Settled, time.Now())
	if f.checks != nil {
		if !isStrict {
			f.checks.noteRange(r.From, anchors[len(anchors)-1], logs, ends.Node)
		}
		r.Checks = f.checks.reportChecks(r.To + 1)
	}
	if err := f.cfg.Handle(ctx, r); err != nil {
		return false, &handError{err}
	}
	f.noteProgress()
	f.done, f.next, f.settled = r.Anchors, r.To+1, r.Settled
	f.width.widen()
	return r.To < r.Head, nil
}

// ReadHead reads the newest block, and the block that now has the number of the last anchor. last is nil if there is
// no anchor.
func (f *Follower) readHead(ctx context.Context) (head node.Block, last *node.Block, _ error) {
	const op = "reading the head"
	var newest *node.Block
	elems := []rpc.BatchElem{node.TaggedCall(node.Latest, &newest)}
	if n := len(f.done); n > 0 {
		elems = append(elems, node.BlockCall(f.done[n-1].Number, &last))
	}
	var err error
	if f.headNode, err = f.reader.SendAll(ctx, op, elems...); err != nil {
		return node.Block{}, nil, err
	}
	if newest == nil {
		return node.Block{}, nil, f.reader.NewUnavailable(op, node.ErrNoBlock)
	}
	return *newest, last, nil
}

// awaitsHead reports whether the head is below the handed-over blocks and may rise again: the node lags, or a reorg
// is not complete. If the head stays low for lowHeadTimeout although its block is new, awaitsHead drops the anchors
// above it, so that the next reading begins below it. It also no longer expects the blocks above the head that a reorg
// replaced. A node that lags for long has an old head. Its chain may still contain the handed-over blocks, so their
// events are not taken back.
func (f *Follower) awaitsHead(newest node.Block) bool {
	n, head := len(f.done), uint64(newest.Number)
	if n == 0 && head+1 < f.next {
		return false // checkStart handles this case
	}
	isBelow := n > 0 && head < f.done[n-1].Number
	if !isBelow && head+1 >= f.strictBefore {
		f.lowSince = time.Time{}
		return false
	}
	now := time.Now()
	if f.lowSince.IsZero() {
		f.lowSince = now
	}
	age := max(0, now.Sub(time.Unix(int64(newest.Time), 0)))
	if isBelow {
		f.trouble = f.reader.NewUnavailable("reading the head", fmt.Errorf("it is block %d, %s old, and block %d was "+
			"read before", head, age.Round(time.Second), f.done[n-1].Number))
	}
	if now.Sub(f.lowSince) < f.lowHeadTimeout || age > f.lowHeadTimeout {
		return isBelow
	}
	f.strictBefore, f.lowSince = head+1, time.Time{}
	if !isBelow {
		return false
	}
	f.log.Warn("the chain's head stays below the last block that was read: reading again from the head", "head", head,
		"read_to", f.done[n-1].Number)
	keep := len(f.done)
	for keep > 0 && f.done[keep-1].Number > head {
		keep--
	}
	f.dropAnchors(keep)
	return true
}

// readRangeLogs reads the logs from the next block to the block to.
func (f *Follower) readRangeLogs(ctx context.Context, to uint64, head node.Block) ([]types.Log, eventlog.Ends, error) {
	filter := f.filter
	filter.FromBlock, filter.ToBlock = hexutil.Uint64(f.next), hexutil.Uint64(to)
	logs, ends, err := f.reader.ReadLogs(ctx, filter)
	isLarge := node.IsTooLarge(err) && to == f.next
	if isLarge {
		logs, ends, err = f.reader.ReadLargeBlock(ctx, filter)
	}
	isHead := to == uint64(head.Number)
	switch {
	case err != nil:
		return nil, ends, err
	// The blocks that were handed over may have been replaced after their hash was compared. Then this range belongs
	// to another branch.
	case isHead && ends.Last.Hash != head.Hash, !f.extendsLastRange(ends.First):
		return nil, ends, eventlog.ErrReorganised
	case logs == nil && !isLarge: // null, which does not say that the range has no logs
		logs, err = f.readNullRange(ctx, filter, ends)
		return logs, ends, err
	case isLarge, f.checks != nil && !f.isStrict():
		return eventlog.Sort(filter.KeepMatching(logs)), ends, nil
	}
	logs, err = f.reader.VerifyLogs(ctx, filter, ends, logs, f.isStrict())
	return logs, ends, err
}

// extendsLastRange reports whether a block is the child of the last block that was handed over.
func (f *Follower) extendsLastRange(first node.Block) bool {
	n := len(f.done)
	return n == 0 || f.done[n-1].Number+1 != uint64(first.Number) || first.IsChildOf(f.done[n-1].Hash)
}

// narrowRange reduces the number of blocks per request if that may help. more is true if the range is too wide, so that
// the next request can follow at once.
func (f *Follower) narrowRange(err error, asked uint64) (more bool, _ error) {
	f.trouble = err
	if errors.Is(err, errNullLogs) {
		f.width.blocks, f.width.held = f.strict.blocks, holdAfterRefusal
		return true, nil
	}
	if asked == 1 || !node.IsRefusedRange(err) {
		return false, err
	}
	f.width.narrow(err, asked)
	if node.IsRangeLimit(err) {
		f.log.Debug("the node refused a range", "blocks", asked, "next", f.width.blocks, "error", err)
		return true, nil
	}
	return false, err
}
