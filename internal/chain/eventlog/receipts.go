package eventlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rlp"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/ethereum/go-ethereum/trie"

	"github.com/agentherald/herald/internal/chain/node"
)

// A block's header contains the root of a tree of its receipts, and the receipts contain all of its logs. If receipts
// hash to that root, no log is missing. On chains whose receipts have their own encoding, the root cannot be computed
// here. There, the node's answer is believed if it is the same several times and its logs fill the header's bloom.

const (
	// ReceiptsAtOnce bounds the transactions whose receipts are requested at once. Each receipt has one or two
	// kilobytes.
	ReceiptsAtOnce = 500
	// sameAnswers is how many times a node must return the same receipts if they prove nothing.
	sameAnswers = 3
	// unprovenInRow and unprovenTime decide that a chain's receipts cannot be proven: this many blocks in a row, over
	// at least this time, had no proof. Then one answer is enough.
	unprovenInRow = 3
	unprovenTime  = time.Minute
	// receiptsPause is the time before nodes without eth_getBlockReceipts are asked for it again.
	receiptsPause = time.Hour
)

var (
	errForgotten = errors.New("the node left out logs: its receipts do not hash to the receiptsRoot of the block")
	errUnproven  = errors.New("its receipts of a block do not hash to the block's receiptsRoot")
	// ErrUnknownReceipts means that receipts cannot be decoded. Transactions of a new type may have receipts of
	// another form.
	ErrUnknownReceipts = errors.New("its receipts of a block have an unknown form")
	errNoReceipts      = errors.New("no node answers eth_getBlockReceipts")
)

// proofs stores how far a chain's receipts can be proven.
type proofs struct {
	refused  time.Time // when no node offered eth_getBlockReceipts
	unproven int       // consecutive blocks without a proof
	since    time.Time // when the first of the unproven blocks was read
}

// provableReceipt holds the fields of a receipt that determine a block's receiptsRoot.
type provableReceipt struct {
	BlockHash             common.Hash     `json:"blockHash"`
	Type                  hexutil.Uint64  `json:"type"`
	Status                hexutil.Uint64  `json:"status"`
	CumulativeGasUsed     hexutil.Uint64  `json:"cumulativeGasUsed"`
	Logs                  []*types.Log    `json:"logs"`
	DepositNonce          *hexutil.Uint64 `json:"depositNonce"`          // OP Stack
	DepositReceiptVersion *hexutil.Uint64 `json:"depositReceiptVersion"` // OP Stack since Canyon
}

// computeBloom computes the bloom of the receipt's logs. The bloom in the node's answer is ignored.
func (r *provableReceipt) computeBloom() types.Bloom {
	return types.CreateBloom(&types.Receipt{Logs: r.Logs})
}

// provableReceipts are the receipts of a block, in the form that types.DeriveSha needs.
type provableReceipts []*provableReceipt

func (rs provableReceipts) Len() int { return len(rs) }

// hasUnknownType reports whether a receipt belongs to a transaction type whose receipt fields are unknown. Its logs
// may be elsewhere, as in EIP-8130 (0x79), whose receipts have a result for each phase.
func (rs provableReceipts) hasUnknownType() bool {
	const lastOfEthereum, firstOfArbitrum, lastOfArbitrum, opDeposit = 0x04, 0x64, 0x78, 0x7e
	return slices.ContainsFunc(rs, func(r *provableReceipt) bool {
		return r != nil && r.Type > lastOfEthereum &&
			(r.Type < firstOfArbitrum || r.Type > lastOfArbitrum) && r.Type != opDeposit
	})
}

// EncodeIndex encodes a receipt as the block's tree contains it. Unknown types are encoded like Ethereum's, which is
// correct for Arbitrum's. For other types the computed root differs from the header's.
func (rs provableReceipts) EncodeIndex(i int, w *bytes.Buffer) {
	const opDeposit = 0x7e
	r := rs[i]
	fields := []any{uint64(r.Status), uint64(r.CumulativeGasUsed), r.computeBloom(), r.Logs}
	if r.Type == opDeposit && r.DepositNonce != nil && r.DepositReceiptVersion != nil {
		fields = append(fields, uint64(*r.DepositNonce), uint64(*r.DepositReceiptVersion))
	}
	if r.Type != types.LegacyTxType {
		w.WriteByte(byte(r.Type))
	}
	_ = rlp.Encode(w, fields) // writing to a buffer cannot fail, and all of these types can be encoded
}

// blockReceipts is the result of a node's receipts of a block.
type blockReceipts struct {
	root   common.Hash // computed from the receipts
	Proven bool        // whether root is the header's
	Logs   []types.Log // all logs of the block
}

func (r blockReceipts) isUnproven() bool { return !r.Proven }

// readWholeLogs reads the logs of blocks from their receipts and proves that none is missing, as far as the chain
// allows.
func (r *Reader) readWholeLogs(
	ctx context.Context, blocks []*Header, filter Filter,
) (logs []types.Log, proven map[common.Hash]bool, _ error) {
	var believed []*Header
	proven = make(map[common.Hash]bool)
	for part := range splitByTransactions(blocks) {
		if r.IsReceiptsPause() {
			believed = append(believed, part...)
			continue
		}
		read, err := r.readReceipts(ctx, part)
		switch {
		case errors.Is(err, errNoReceipts):
			r.NoteNoReceipts()
			believed = append(believed, part...)
			continue
		case errors.Is(err, node.ErrTooLarge) && len(part) == 1:
			believed = append(believed, part...)
			r.Logger().Warn("the receipts of a block are too large to be read: its logs are believed", "chain",
				r.ChainID(), "block", uint64(part[0].Number), "error", err)
			continue
		case err != nil:
			return nil, nil, err
		}
		for i, found := range read {
			if !found.Proven {
				if found, err = r.askReceiptsAgain(ctx, part[i], found); err != nil {
					return nil, nil, err
				}
			}
			r.NoteProof(part[i], found.Proven)
			if !found.Proven {
				believed = append(believed, part[i])
			}
			proven[part[i].Hash] = found.Proven
			logs = append(logs, filter.KeepMatching(found.Logs)...)
		}
	}
	read, err := r.readBlockLogs(ctx, believed, filter)
	return append(logs, read...), proven, err
}

// splitByTransactions splits blocks into parts whose receipts fit into one answer.
func splitByTransactions(blocks []*Header) func(yield func([]*Header) bool) {
	return func(yield func([]*Header) bool) {
		var part []*Header
		held := 0
		for _, b := range blocks {
			if len(part) == node.MostCalls-1 || len(part) > 0 && held+len(b.Transactions) > ReceiptsAtOnce {
				if !yield(part) {
					return
				}
				part, held = nil, 0
			}
			part, held = append(part, b), held+len(b.Transactions)
		}
		if len(part) > 0 {
			yield(part)
		}
	}
}

// readReceipts reads the receipts of blocks from one node. If they are incomplete or prove nothing, it asks another
// node.
func (r *Reader) readReceipts(ctx context.Context, blocks []*Header) (read []blockReceipts, _ error) {
	refusals, patient := 0, !r.hasNoProof()
	var unproven []blockReceipts
	elems := make([]rpc.BatchElem, len(blocks))
	for i, b := range blocks {
		elems[i] = rpc.BatchElem{Method: "eth_getBlockReceipts", Args: []any{b.Hash}, Result: new(json.RawMessage)}
	}
	asked, err := r.SendUntil(ctx, "reading the receipts of blocks", elems, func(asked int) error {
		read = nil
		for i, e := range elems {
			if e.Error != nil {
				if r.IsUnsupported(e.Error) {
					refusals++
				}
				return e.Error
			}
			answer, _ := e.Result.(*json.RawMessage)
			decoded, err := blocks[i].DecodeReceipts(*answer)
			if err != nil && !errors.Is(err, ErrUnknownReceipts) {
				return err
			}
			read = append(read, decoded)
		}
		if patient && asked < r.CountNodes() && slices.ContainsFunc(read, blockReceipts.isUnproven) {
			unproven = read
			return errUnproven
		}
		return nil
	})
	if unproven != nil && err != nil {
		return unproven, nil // no node proves more
	}
	if refusals > 0 && refusals == asked {
		return nil, errNoReceipts
	}
	return read, err
}

// DecodeReceipts decodes a node's answer and calls checkReceipts. It returns ErrUnknownReceipts if a receipt cannot
// be decoded: then the block is unproven, and its logs come from eth_getLogs.
func (b *Header) DecodeReceipts(answer json.RawMessage) (blockReceipts, error) {
	var receipts provableReceipts
	if err := json.Unmarshal(answer, &receipts); err != nil {
		return blockReceipts{}, fmt.Errorf("block %d: %w: %w", uint64(b.Number), ErrUnknownReceipts, err)
	}
	return b.checkReceipts(receipts)
}

// checkReceipts compares receipts with the block's header. It fails if they are of another block, or if the header's
// bloom shows that they lack logs, unless a receipt has an unknown type.
func (b *Header) checkReceipts(receipts provableReceipts) (r blockReceipts, _ error) {
	if receipts == nil {
		return r, node.ErrNoBlock
	}
	var bloom types.Bloom
	for i, receipt := range receipts {
		if receipt == nil || receipt.BlockHash != b.Hash {
			return r, fmt.Errorf("receipt %d of block %d is of another block", i, uint64(b.Number))
		}
		if slices.Contains(receipt.Logs, nil) {
			return r, fmt.Errorf("receipt %d of block %d has a log that is null", i, uint64(b.Number))
		}
		of := receipt.computeBloom()
		for at := range bloom {
			bloom[at] |= of[at]
		}
		for _, l := range receipt.Logs {
			whole := *l
			whole.BlockNumber, whole.BlockHash, whole.BlockTimestamp = uint64(b.Number), b.Hash, uint64(b.Time)
			r.Logs = append(r.Logs, whole)
		}
	}
	r.root = types.DeriveSha(receipts, trie.NewListHasher())
	r.Proven = r.root == b.ReceiptsRoot
	if !r.Proven && b.isMissing(bloom) && !receipts.hasUnknownType() {
		return r, fmt.Errorf("block %d: %w", uint64(b.Number), errForgotten)
	}
	return r, nil
}

// isMissing reports whether the header's bloom has bits that are not set in bloom, so that logs are missing. A
// header's bloom with all bits set is ignored.
func (b *Header) isMissing(bloom types.Bloom) bool {
	if b.Bloom == nil || !slices.ContainsFunc(b.Bloom[:], func(of byte) bool { return of != 0xff }) {
		return false
	}
	for at, of := range b.Bloom {
		if of&^bloom[at] != 0 {
			return true
		}
	}
	return false
}

// askReceiptsAgain reads receipts that prove nothing again, until they are proven or until the same ones came
// sameAnswers times.
func (r *Reader) askReceiptsAgain(ctx context.Context, b *Header, first blockReceipts) (blockReceipts, error) {
	if r.hasNoProof() {
		return first, nil
	}
	for range sameAnswers - 1 {
		again, err := r.readReceipts(ctx, []*Header{b})
		switch {
		case err != nil:
			return first, err
		case again[0].Proven:
			return again[0], nil
		case again[0].root != first.root:
			return first, r.NewUnavailable("reading the receipts of blocks",
				fmt.Errorf("block %d: %w", uint64(b.Number), errForgotten))
		}
	}
	return first, nil
}

// IsReceiptsPause reports whether the nodes offered no eth_getBlockReceipts within the last receiptsPause.
func (r *Reader) IsReceiptsPause() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.proofs.refused) < receiptsPause
}

// NoteNoReceipts starts the pause in which eth_getBlockReceipts is not called.
func (r *Reader) NoteNoReceipts() {
	r.mu.Lock()
	r.proofs.refused = time.Now()
	r.mu.Unlock()
	r.Logger().Warn("no node of the chain answers eth_getBlockReceipts: that they leave out no logs is believed, "+
		"not proven",
		"chain", r.ChainID(), "again", receiptsPause)
}

// hasNoProof reports whether the receipts of the last blocks could not be proven.
func (r *Reader) hasNoProof() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proofs.unproven >= unprovenInRow && time.Since(r.proofs.since) >= unprovenTime
}

// NoteProof counts the consecutive blocks that could not be proven, and logs a warning at the first.
func (r *Reader) NoteProof(b *Header, proven bool) {
	r.mu.Lock()
	r.proofs.unproven++
	if proven {
		r.proofs.unproven = 0
	}
	first := r.proofs.unproven == 1
	if first {
		r.proofs.since = time.Now()
	}
	r.mu.Unlock()
	if first {
		r.Logger().Warn("the receipts of a block do not hash to its receiptsRoot, although none seems to be missing: "+
			"its logs are believed, not proven", "chain", r.ChainID(), "block", uint64(b.Number))
	}
}
