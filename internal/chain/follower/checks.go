package follower

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
)

// A follower hands over the logs of eth_getLogs before it knows that they are complete. Afterwards the checker looks
// for omissions, with one request of at most proofCalls calls per poll. It compares a range with the answer of
// another node, or reads the headers and receipts of single blocks. docs/design/chain.md describes the limits of these
// checks.

const (
	// proofCalls bounds the calls in the one request that checks blocks during a poll.
	proofCalls = 10
	// maxRecheck bounds the blocks that are read again after an omission: 500,000 are a day on the fastest chains. Each
	// needs a request of its own, and with one node, the last complete check may be months ago.
	maxRecheck = 500_000
	// strictWidth bounds the blocks in a range whose blocks are all checked before the range is handed over.
	strictWidth = 500
	// compareAgain is the pause after a failed comparison with another node, during which single blocks are checked,
	// and after a block could not be read again.
	compareAgain = time.Minute
	// proofTries is the number of answers that may prove nothing about a block before the block counts as unchecked
	// again.
	proofTries = 3
	// mostKnownLogs bounds the number of log positions that are kept for unchecked blocks.
	mostKnownLogs = 100_000
	// mostReaders bounds the number of ranges for which the answering node is kept.
	mostReaders = 256
)

// Checks describes how far a follower knows that its nodes left out no logs. The store keeps it together with the
// cursor.
type Checks struct {
	// Complete is the block up to which all blocks are checked.
	Complete uint64 `json:"complete"`
	// Unchecked is the number of blocks after Complete that are unchecked or that may be.
	Unchecked uint64 `json:"unchecked"`
	// Share is the share of checked blocks among the newest 10,000 to 20,000 blocks.
	Share float64 `json:"share"`
	// Omission is the newest proven omission.
	Omission *Omission `json:"omission,omitempty"`
	// Recheck is the first and the last block of the range that is read again and checked completely after an
	// omission.
	Recheck *[2]uint64 `json:"recheck,omitempty"`
}

// Omission is a proof that a node left out logs.
type Omission struct {
	Node  int       `json:"node"` // its position in RPC_URL_<chain>; 0 if it is unknown
	Block uint64    `json:"block"`
	Logs  int       `json:"logs"`
	At    time.Time `json:"at"`
}

// Share covers at least shareOf blocks. Its counts are halved when they exceed shareUpTo.
const (
	shareOf   = 100
	shareUpTo = 20_000
)

// checkBlocks sends the next request that checks blocks.
func (f *Follower) checkBlocks(ctx context.Context) error {
	k := f.checks
	if r, ok := f.nextComparison(); ok && len(k.wanted)+len(k.suspects) == 0 {
		return f.compareRange(ctx, r)
	}
	return f.proveBlocks(ctx)
}

// finalBlock returns the newest block that counts as final: the newer of the finalized and the settled block.
func (f *Follower) finalBlock() uint64 { return max(f.finalized, f.settled) }

// proveBlocks reads the receipts of suspects and the headers of drawn blocks in one request.
func (f *Follower) proveBlocks(ctx context.Context) error {
	k := f.checks
	const op = "checking blocks for logs that were left out"
	slots := min(proofCalls-1, f.reader.PartSize())
	elems, suspects := f.listSuspectCalls(slots)
	// Suspects that are left for a later request count too. Otherwise a chain with large blocks would add suspects
	// faster than their receipts can be read.
	free := max(0, slots-len(k.suspects))
	numbers := k.wanted[:min(len(k.wanted), free)]
	k.wanted = k.wanted[len(numbers):]
	drawn, err := f.drawBlocks(free - len(numbers))
	if err != nil {
		return err
	}
	numbers = append(slices.Clone(numbers), drawn...)
	for _, n := range drawn {
		k.open[n] = true
	}
	for _, n := range numbers {
		elems = append(elems, node.BlockCall(n, new(*eventlog.Header)))
	}
	if len(elems) == 0 {
		return nil
	}
	if _, err := f.reader.SendBatch(ctx, op, elems); err != nil {
		k.returnBlocks(numbers...)
		k.noteUnanswered(len(suspects), err)
		return err
	}
	k.suspects = k.suspects[len(suspects):]
	for i, n := range numbers {
		e := elems[len(suspects)+i]
		if b, _ := e.Result.(**eventlog.Header); e.Error != nil || *b == nil || uint64((*b).Number) != n {
			k.returnBlocks(n)
		} else {
			f.checkHeader(*b)
		}
	}
	var failure error
	for i, s := range suspects {
		if !k.open[uint64(s.Number)] {
			continue // an omission was found, so that this block is read again
		}
		if err := f.checkSuspect(ctx, s, elems[i]); err != nil {
			failure = err
			k.returnBlocks(uint64(s.Number))
		}
	}
	return failure
}

// drawBlocks takes up to n blocks to check, final ones first. Blocks before knownFrom are taken only if they are
// final.
func (f *Follower) drawBlocks(n int) ([]uint64, error) {
	k := f.checks
	last := uint64(math.MaxUint64)
	if r, compares := f.nextComparison(); compares {
		last = r.from - 1 // later blocks are compared with another node
	}
	drawn, err := k.unchecked.drawBlocks(n, 0, min(f.finalBlock(), last))
	if err != nil {
		return nil, err
	}
	others, err := k.unchecked.drawBlocks(n-len(drawn), max(f.finalBlock()+1, k.knownFrom), last)
	return append(drawn, others...), err
}

// checkHeader ends the check of a block whose bloom rules out events. Other blocks become suspects.
func (f *Follower) checkHeader(b *eventlog.Header) {
	n := uint64(b.Number)
	if b.Bloom != nil && !eventlog.MayHold(*b.Bloom, f.filter) {
		f.checks.noteChecked(n, n)
		return
	}
	f.checks.suspects = append(f.checks.suspects, suspect{Header: b})
}

// listSuspectCalls returns the calls that check suspects, and those suspects. The number of their transactions is
// bounded, which bounds the size of the answer.
func (f *Follower) listSuspectCalls(slots int) (elems []rpc.BatchElem, suspects []suspect) {
	transactions := 0
	for _, s := range f.checks.suspects {
		transactions += len(s.Transactions)
		if len(elems) == slots || len(elems) > 0 && transactions > eventlog.ReceiptsAtOnce {
			break
		}
		e := rpc.BatchElem{Method: "eth_getBlockReceipts", Args: []any{s.Hash}, Result: new(json.RawMessage)}
		if s.byHash || f.reader.IsReceiptsPause() {
			e.Method, e.Args = "eth_getLogs", []any{f.filter.AtBlock(s.Hash)}
		}
		elems, suspects = append(elems, e), append(suspects, s)
	}
	return elems, suspects
}

// checkSuspect compares the logs in a block's receipts with the logs that were handed over. It returns an error if
// they cannot be compared.
func (f *Follower) checkSuspect(ctx context.Context, s suspect, e rpc.BatchElem) error {
	answer, _ := e.Result.(*json.RawMessage)
	logs, again, err := f.readSuspectLogs(s, e.Method, *answer, e.Error)
	if again && s.tries < proofTries {
		s.tries++
		s.byHash = s.byHash || errors.Is(err, eventlog.ErrUnknownReceipts)
		f.checks.suspects = append(f.checks.suspects, s)
		return nil
	}
	if err != nil {
		return err
	}
	n := uint64(s.Number)
	if n < f.checks.knownFrom {
		return f.checkOldBlock(ctx, s, logs)
	}
	missing := slices.DeleteFunc(slices.Clone(logs), func(l types.Log) bool {
		return slices.Contains(f.checks.known[n], eventlog.PositionOf(l))
	})
	if len(missing) == 0 {
		f.checks.noteChecked(n, n)
		return nil
	}
	isOurs, err := f.isHandedOver(ctx, s.Block)
	if err != nil || !isOurs {
		return errors.Join(err, eventlog.ErrReorganised)
	}
	f.noteOmission(n, len(missing))
	return nil
}

// readSuspectLogs returns the logs in an answer about a block. again is true if another answer may prove more.
func (f *Follower) readSuspectLogs(
	s suspect, method string, answer json.RawMessage, failure error,
) (logs []types.Log, again bool, _ error) {
	r := f.reader
	switch {
	case failure != nil && method == "eth_getBlockReceipts" && r.IsUnsupported(failure):
		r.NoteNoReceipts()
		return nil, true, failure
	case failure != nil:
		return nil, true, r.NewUnavailable("reading the receipts of a block", failure)
	case method == "eth_getLogs":
		if err := json.Unmarshal(answer, (*node.Logs)(&logs)); err != nil {
			return nil, true, err
		}
		for i := range logs {
			logs[i].BlockNumber, logs[i].BlockHash = uint64(s.Number), s.Hash
		}
		return f.filter.KeepMatching(logs), false, nil
	}
	receipts, err := s.DecodeReceipts(answer)
	if errors.Is(err, eventlog.ErrUnknownReceipts) {
		r.NoteProof(s.Header, false)
	}
	if err != nil {
		return nil, true, err
	}
	r.NoteProof(s.Header, receipts.Proven)
	return f.filter.KeepMatching(receipts.Logs), false, nil
}

// checkOldBlock hands over the logs of a final block that an earlier follower read. The store decides which of them
// are new.
func (f *Follower) checkOldBlock(ctx context.Context, s suspect, logs []types.Log) error {
	n := uint64(s.Number)
	missing, err := f.handFound(ctx, logs)
	switch {
	case err != nil:
		return err
	case missing > 0:
		f.noteOmission(n, missing)
	}
	f.checks.noteChecked(n, n)
	return nil
}

// handFound hands over logs of final blocks and returns the number of logs that the store did not know.
func (f *Follower) handFound(ctx context.Context, logs []types.Log) (missing int, _ error) {
	if len(logs) == 0 || f.cfg.Found == nil {
		return 0, nil
	}
	events, err := f.reader.MakeEntries(ctx, eventlog.Sort(logs), f.cfg.Deployment, f.cfg.Limits)
	if err != nil {
		return 0, err
	}
	if missing, err = f.cfg.Found(ctx, events); err != nil {
		return 0, &handError{err}
	}
	return missing, nil
}

// isHandedOver reports whether a block is on the branch that was handed over: both the block and the last anchor are
// canonical.
func (f *Follower) isHandedOver(ctx context.Context, b node.Block) (bool, error) {
	if len(f.done) == 0 {
		return false, nil
	}
	const op = "looking for a reorg"
	last := f.done[len(f.done)-1]
	var own, anchor *node.Block
	elems := []rpc.BatchElem{
		node.BlockCall(uint64(b.Number), &own),
		node.BlockCall(last.Number, &anchor),
	}
	if _, err := f.reader.SendBatch(ctx, op, elems); err != nil {
		return false, err
	}
	return own != nil && anchor != nil && own.Hash == b.Hash && anchor.Hash == last.Hash, nil
}

// NoteOmission marks the node that left out logs, and schedules the blocks since the last complete check, at most
// maxRecheck, to be read again and checked. Blocks that are not final are read again as after a reorg. Final blocks are
// read again between readings.
func (f *Follower) noteOmission(n uint64, logs int) {
	k := f.checks
	complete := k.reportChecks(f.next).Complete
	k.omission = &Omission{Node: k.findReader(n), Block: n, Logs: logs, At: time.Now().UTC()}
	f.reader.NoteOmission(k.omission.Node)
	from := min(complete+1, n)
	resume := max(from, f.finalBlock()+1)
	keep := len(f.done)
	for keep > 0 && f.done[keep-1].Number >= resume {
		keep--
	}
	if keep < len(f.done) {
		f.strictBefore = max(f.strictBefore, f.next)
		f.done = f.done[:keep:keep]
		f.next = max(min(f.next, resume), f.cfg.From)
		if keep > 0 {
			f.next = f.done[keep-1].Number + 1
		}
		k.rewindChecks(f.next)
	}
	if from < f.next {
		if k.recheck != nil {
			from = min(from, k.recheck.from)
		}
		from = max(from, f.next-min(f.next, maxRecheck))
		k.recheck = &span{from, f.next - 1}
	}
	f.log.Error("a node left out logs: the blocks since the last complete check are read again, and each of them is "+
		"checked (a backfill can read older ones)", "node", k.omission.Node, "block", n, "logs", logs, "from", from,
		"last_complete_check", complete)
}

// recheckBlocks reads the newest of the final blocks that are scheduled to be read again. The oldest come last, because
// the node may have dropped them.
func (f *Follower) recheckBlocks(ctx context.Context) error {
	k := f.checks
	filter := f.filter
	to := k.recheck.to
	from := max(k.recheck.from, to-min(to, k.recheckWidth.blocks-1))
	filter.FromBlock, filter.ToBlock = hexutil.Uint64(from), hexutil.Uint64(to)
	logs, ends, err := f.reader.ReadLogs(ctx, filter)
	if err == nil {
		logs, err = f.reader.CompleteLogs(ctx, filter, ends, logs)
	}
	switch {
	case err != nil && from < to && node.IsRefusedRange(err):
		k.recheckWidth.narrow(err, to-from+1)
		return nil
	case err != nil:
		k.recheckAfter = time.Now().Add(compareAgain)
		return err
	}
	k.recheckWidth.widen()
	missing, err := f.handFound(ctx, logs)
	if err != nil {
		return err
	}
	if missing > 0 {
		f.log.Warn("logs that a node left out were found", "logs", missing, "from", from, "to", to)
	}
	k.dropBlocks(from, to)
	if from > k.recheck.from {
		k.recheck = &span{k.recheck.from, from - 1}
		return nil
	}
	k.recheck = nil
	f.log.Info("all blocks since the last complete check were read again", "from", from)
	return nil
}
