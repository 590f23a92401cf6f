package chain

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
)

// A block's header holds the root of a tree of its receipts, and these hold all of its logs. Receipts that come to that
// root lack no log. Chains with receipts of their own kind, whose root is not found here, cannot be proven: there what
// the node says is believed, if it says the same several times and its logs make up the header's bloom.

const (
	// receiptsAtOnce bounds the transactions whose receipts are asked for in one request: each has a kilobyte or two.
	receiptsAtOnce = 500
	// sameAnswers is how often a node has to give the same receipts where they prove nothing.
	sameAnswers = 3
	// unprovenInRow blocks without a proof in a row, over unprovenTime at least, mean that the chain has none: then one
	// answer is enough.
	unprovenInRow = 3
	unprovenTime  = time.Minute
	// receiptsPause is the time before nodes that have no eth_getBlockReceipts are asked for it again.
	receiptsPause = time.Hour
)

var (
	errForgotten = errors.New("the node left out logs: its receipts do not come to the receiptsRoot of the block")
	errUnproven  = errors.New("its receipts of a block do not come to the block's receiptsRoot")
	// errUnknownReceipts says that receipts cannot be decoded: those of transactions of a new type may have another form.
	errUnknownReceipts = errors.New("its receipts of a block have an unknown form")
	errNoReceipts      = errors.New("no node answers eth_getBlockReceipts")
)

// proofs is what is known of how far a chain's receipts can be proven.
type proofs struct {
	refused  time.Time // when no node had eth_getBlockReceipts
	unproven int       // blocks without a proof in a row
	since    time.Time // when the first of them was read
}

// provableReceipt is what a block's receiptsRoot is made of.
type provableReceipt struct {
	BlockHash             common.Hash     `json:"blockHash"`
	Type                  hexutil.Uint64  `json:"type"`
	Status                hexutil.Uint64  `json:"status"`
	CumulativeGasUsed     hexutil.Uint64  `json:"cumulativeGasUsed"`
	Logs                  []*types.Log    `json:"logs"`
	DepositNonce          *hexutil.Uint64 `json:"depositNonce"`          // OP Stack
	DepositReceiptVersion *hexutil.Uint64 `json:"depositReceiptVersion"` // OP Stack since Canyon
}

// bloom is that of the receipt's logs. What the node says of it is not looked at.
func (r *provableReceipt) computeBloom() types.Bloom {
	return types.CreateBloom(&types.Receipt{Logs: r.Logs})
}

// provableReceipts are a block's, as types.DeriveSha takes them.
type provableReceipts []*provableReceipt

func (rs provableReceipts) Len() int { return len(rs) }

// hasUnknownType reports whether a receipt is of a transaction type of which the receipt's fields are unknown: its logs
// may be elsewhere, as those of EIP-8130 (0x79), whose receipts have a result for each phase.
func (rs provableReceipts) hasUnknownType() bool {
	const lastOfEthereum, firstOfArbitrum, lastOfArbitrum, opDeposit = 0x04, 0x64, 0x78, 0x7e
	return slices.ContainsFunc(rs, func(r *provableReceipt) bool {
		return r != nil && r.Type > lastOfEthereum && (r.Type < firstOfArbitrum || r.Type > lastOfArbitrum) && r.Type != opDeposit
	})
}

// EncodeIndex encodes a receipt as its block's tree holds it. Types that are not known are encoded as Ethereum's are,
// which is right for Arbitrum's: where it is not, the root is another.
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
	_ = rlp.Encode(w, fields) // a buffer takes all, and all of these types can be encoded
}

// blockReceipts are what a node said of a block.
type blockReceipts struct {
	root   common.Hash // that they come to
	proven bool        // it is the header's
	logs   []types.Log // all of the block
}

func (r blockReceipts) isUnproven() bool { return !r.proven }

// readWholeLogs reads the logs of blocks and proves that there are no more, as far as the chain allows.
func (c *Client) readWholeLogs(
	ctx context.Context, blocks []*bloomBlock, filter logFilter,
) (logs []types.Log, proven map[common.Hash]bool, _ error) {
	var believed []*bloomBlock
	proven = make(map[common.Hash]bool)
	for part := range splitByTransactions(blocks) {
		if c.isReceiptsPause() {
			believed = append(believed, part...)
			continue
		}
		read, err := c.readReceipts(ctx, part)
		switch {
		case errors.Is(err, errNoReceipts):
			c.noteNoReceipts()
			believed = append(believed, part...)
			continue
		case errors.Is(err, errTooLarge) && len(part) == 1:
			believed = append(believed, part...)
			c.log.Warn("the receipts of a block are too large to be read: its logs are believed", "chain", c.chainID,
				"block", uint64(part[0].Number), "error", err)
			continue
		case err != nil:
			return nil, nil, err
		}
		for i, r := range read {
			if !r.proven {
				if r, err = c.askReceiptsAgain(ctx, part[i], r); err != nil {
					return nil, nil, err
				}
			}
			c.noteProof(part[i], r.proven)
			if !r.proven {
				believed = append(believed, part[i])
			}
			proven[part[i].Hash] = r.proven
			logs = append(logs, slices.DeleteFunc(r.logs, func(l types.Log) bool { return !filter.matchesLog(l) })...)
		}
	}
	read, err := c.readBlockLogs(ctx, believed, filter)
	return append(logs, read...), proven, err
}

// splitByTransactions splits blocks into parts whose receipts are one answer.
func splitByTransactions(blocks []*bloomBlock) func(yield func([]*bloomBlock) bool) {
	return func(yield func([]*bloomBlock) bool) {
		var part []*bloomBlock
		held := 0
		for _, b := range blocks {
			if len(part) == mostCalls-1 || len(part) > 0 && held+len(b.Transactions) > receiptsAtOnce {
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

// readReceipts reads the receipts of blocks from one node, and from another one when that left out logs.
func (c *Client) readReceipts(ctx context.Context, blocks []*bloomBlock) (read []blockReceipts, _ error) {
	const op = "reading the receipts of blocks"
	asked, refusals, patient := 0, 0, !c.hasNoProof()
	var unproven []blockReceipts
	failure, err := c.askNode(ctx, op, func(ctx context.Context, conn nodeConn) error {
		asked++
		elems := make([]rpc.BatchElem, len(blocks))
		for i, b := range blocks {
			elems[i] = rpc.BatchElem{Method: "eth_getBlockReceipts", Args: []any{b.Hash},
				Result: new(json.RawMessage)}
		}
		if err := c.callBatch(ctx, conn, elems); err != nil {
			return err
		}
		read = nil
		for i, e := range elems {
			if e.Error != nil {
				if c.isUnsupported(e.Error) {
					refusals++
				}
				return e.Error
			}
			answer, _ := e.Result.(*json.RawMessage)
			r, err := blocks[i].decodeReceipts(*answer)
			if err != nil && !errors.Is(err, errUnknownReceipts) {
				return err
			}
			read = append(read, r)
		}
		if patient && asked < len(c.nodes) && slices.ContainsFunc(read, blockReceipts.isUnproven) {
			unproven = read
			return errUnproven
		}
		return nil
	})
	if unproven != nil && (err != nil || failure != nil) {
		return unproven, nil // nobody proves more
	}
	if refusals > 0 && refusals == asked {
		return nil, errNoReceipts
	}
	return read, c.typeFailure(op, failure, err)
}

// isUnsupported tells whether a node does not know the method, or not with a block's hash, or does not offer it.
func (c *Client) isUnsupported(err error) bool {
	const invalidRequest, methodNotFound, invalidParams, methodNotSupported = -32600, -32601, -32602, -32004
	var answered *rpcError
	return errors.As(c.maskFailure(err), &answered) && slices.Contains(
		[]int{invalidRequest, methodNotFound, invalidParams, methodNotSupported}, answered.code)
}

// decodeReceipts is checkReceipts of a node's answer. The error is errUnknownReceipts if a receipt cannot be decoded:
// then the block is unproven, and its logs come from eth_getLogs.
func (b *bloomBlock) decodeReceipts(answer json.RawMessage) (blockReceipts, error) {
	var receipts provableReceipts
	if err := json.Unmarshal(answer, &receipts); err != nil {
		return blockReceipts{}, fmt.Errorf("block %d: %w: %w", uint64(b.Number), errUnknownReceipts, err)
	}
	return b.checkReceipts(receipts)
}

// checkReceipts finds out what receipts prove. It fails when they lack something.
func (b *bloomBlock) checkReceipts(receipts provableReceipts) (r blockReceipts, _ error) {
	if receipts == nil {
		return r, errNoBlock
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
			r.logs = append(r.logs, whole)
		}
	}
	r.root = types.DeriveSha(receipts, trie.NewListHasher())
	r.proven = r.root == b.ReceiptsRoot
	if !r.proven && b.isMissing(bloom) && !receipts.hasUnknownType() {
		return r, fmt.Errorf("block %d: %w", uint64(b.Number), errForgotten)
	}
	return r, nil
}

// isMissing tells whether the header's bloom has logs that a node's have not. One that is full tells nothing.
func (b *bloomBlock) isMissing(bloom types.Bloom) bool {
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

// askReceiptsAgain asks for receipts that prove nothing until they do, or until the same ones came often enough.
func (c *Client) askReceiptsAgain(ctx context.Context, b *bloomBlock, first blockReceipts) (blockReceipts, error) {
	if c.hasNoProof() {
		return first, nil
	}
	for range sameAnswers - 1 {
		again, err := c.readReceipts(ctx, []*bloomBlock{b})
		switch {
		case err != nil:
			return first, err
		case again[0].proven:
			return again[0], nil
		case again[0].root != first.root:
			return first, c.newUnavailable("reading the receipts of blocks",
				fmt.Errorf("block %d: %w", uint64(b.Number), errForgotten))
		}
	}
	return first, nil
}

// isReceiptsPause tells whether the nodes had no eth_getBlockReceipts a short while ago.
func (c *Client) isReceiptsPause() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.proofs.refused) < receiptsPause
}

func (c *Client) noteNoReceipts() {
	c.mu.Lock()
	c.proofs.refused = time.Now()
	c.mu.Unlock()
	c.log.Warn("no node of the chain answers eth_getBlockReceipts: that they leave out no logs is believed, not proven",
		"chain", c.chainID, "again", receiptsPause)
}

// hasNoProof tells that the receipts of the last blocks proved nothing.
func (c *Client) hasNoProof() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proofs.unproven >= unprovenInRow && time.Since(c.proofs.since) >= unprovenTime
}

// noteProof counts the blocks in a row that could not be proven, and says so at the first.
func (c *Client) noteProof(b *bloomBlock, proven bool) {
	c.mu.Lock()
	c.proofs.unproven++
	if proven {
		c.proofs.unproven = 0
	}
	first := c.proofs.unproven == 1
	if first {
		c.proofs.since = time.Now()
	}
	c.mu.Unlock()
	if first {
		c.log.Warn("the receipts of a block do not come to its receiptsRoot, though nothing is seen to be missing: "+
			"its logs are believed, not proven", "chain", c.chainID, "block", uint64(b.Number))
	}
}
