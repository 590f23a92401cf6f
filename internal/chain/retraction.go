package chain

import (
	"context"
	"errors"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// checkRetraction checks whether a feedback is gone. The block that the retraction names must not be canonical. If
// the retraction names a transaction, the canonical chain must not contain that transaction with this log. The
// feedback index proves nothing then, because the client's next feedback may use the same one. If the retraction
// names no transaction, the registry must have no feedback with that index: indexes only grow and revoked feedback
// keeps its index, so one getLastIndex call answers for all canonical blocks.
//
// It decides nothing before the height of the named block is confirmed: the indexer's node may have seen the reorg
// before this one, and the block that replaced the named block may be replaced itself. For the same reason, it does not
// decide that the transaction was mined again before its new block is confirmed.
func (c *Client) checkRetraction(ctx context.Context, j job.Job, v Verify) (Standing, error) {
	lastIndex, err := erc8004.PackGetLastIndex(j.AgentID, j.ClientAddress)
	if err != nil {
		return newContradiction("agentId"), nil
	}
	var head, named *node.Block
	const op = "reading the block that a retraction names"
	elems := []rpc.BatchElem{
		node.TaggedCall(node.Latest, &head),
		{Method: "eth_getBlockByHash", Args: []any{j.BlockHash, false}, Result: &named},
	}
	if _, err := c.SendBatch(ctx, op, elems); err != nil {
		return Standing{}, err
	}
	at := j.BlockNumber
	switch {
	case elems[0].Error != nil:
		return Standing{}, c.NewUnavailable(op, elems[0].Error)
	case head == nil:
		return Standing{}, c.NewUnavailable("reading the head", node.ErrNoBlock)
	// With a height it is not needed; some nodes answer an unknown hash with an error.
	case elems[1].Error != nil && at == 0:
		return Standing{}, c.NewUnavailable(op, elems[1].Error)
	case named == nil && at == 0:
		return newContradiction("blockNumber"), nil // the height is unknown
	case named != nil && at == 0:
		at = uint64(named.Number)
	case named != nil && at != uint64(named.Number):
		return newContradiction("blockNumber"), nil
	}
	c.CompareHeads(ctx, *head)
	if s, ahead, err := c.checkAhead(ctx, at, *head); ahead || err != nil {
		return s, err
	}
	missing, unnamed, err := c.countMissing(ctx, v, at, uint64(head.Number))
	if err != nil || missing > 0 {
		return Standing{Found: true, ConfirmedIn: missing, Unnamed: unnamed}, err
	}
	return c.findVanished(ctx, j, v, lastIndex, at, *head)
}

// findVanished looks for the feedback in the named block and in the canonical chain up to head.
func (c *Client) findVanished(
	ctx context.Context, j job.Job, v Verify, lastIndex []byte, at uint64, head node.Block,
) (Standing, error) {
	const op = "looking for feedback that was retracted"
	var canonical *node.Block
	var stored hexutil.Bytes
	var logs []types.Log
	var mined *node.Receipt
	elems := []rpc.BatchElem{
		node.BlockCall(at, &canonical),
		{Method: "eth_call", Result: &stored,
			Args: node.CallArgs(j.ReputationRegistry, lastIndex, hexutil.EncodeUint64(uint64(head.Number)))},
		{Method: "eth_getLogs", Args: []any{newVanishedFilter(j).AtBlock(j.BlockHash)}, Result: &logs},
	}
	if j.TransactionHash != (common.Hash{}) {
		elems = append(elems,
			rpc.BatchElem{Method: "eth_getTransactionReceipt", Args: []any{j.TransactionHash}, Result: &mined})
	}
	if _, err := c.SendBatch(ctx, op, elems); err != nil {
		return Standing{}, err
	}
	if elems[0].Error != nil {
		err := c.NewUnavailable(op, elems[0].Error)
		if node.IsRefusedForGood(err) { // the job chose the height
			return newContradiction("blockNumber"), nil
		}
		return Standing{}, err
	}
	switch {
	// The node does not lag: it dropped the block.
	case canonical == nil && uint64(head.Number)-at > c.countBlocks(ctx, maxAhead):
		return newContradiction("blockNumber"), nil
	case canonical == nil:
		return Standing{}, c.NewUnavailable(op, node.ErrNoBlock)
	case canonical.Hash == j.BlockHash:
		return newContradiction("blockHash"), nil
	}
	ret, err := c.ReadAnswer(op, j.ReputationRegistry, stored, elems[1].Error)
	var reverted *node.Revert
	switch {
	case errors.As(err, &reverted):
		return newContradiction("reputationRegistry"), nil
	case err != nil:
		return Standing{}, err
	}
	last, err := erc8004.UnpackGetLastIndex(ret)
	if err != nil {
		return Standing{}, c.NewUnavailable(op, err)
	}
	switch {
	case j.TransactionHash == (common.Hash{}):
		if last >= j.FeedbackIndex {
			return newContradiction("feedbackIndex"), nil
		}
	case elems[3].Error != nil:
		return Standing{}, c.NewUnavailable(op, elems[3].Error)
	case mined != nil && hasFeedback(mined.Logs, j):
		missing, unnamed, err := c.countMissing(ctx, v, uint64(mined.BlockNumber), uint64(head.Number))
		if err != nil || missing > 0 {
			return Standing{Found: true, ConfirmedIn: missing, Unnamed: unnamed}, err
		}
		return newContradiction("transactionHash"), nil
	}
	// Most nodes drop blocks that are not canonical sooner or later. So an error or an answer without logs proves
	// nothing.
	return Standing{Found: true, Confirmed: true, Witnessed: elems[2].Error == nil && hasFeedback(logs, j)}, nil
}

// newVanishedFilter returns the filter of the client's feedback to the agent.
func newVanishedFilter(j job.Job) eventlog.Filter {
	j.Kind = job.KindNewFeedback
	return newFilter(j)
}

// hasFeedback reports whether logs contain the feedback of a retraction. Forms without an index are matched by agent
// and client only.
func hasFeedback(logs []types.Log, j job.Job) bool {
	for _, l := range newVanishedFilter(j).KeepMatching(logs) {
		e, err := erc8004.Decode(l)
		if err == nil && (!e.HasIndex || e.FeedbackIndex == j.FeedbackIndex) &&
			(j.TransactionHash == (common.Hash{}) || l.TxHash == j.TransactionHash) {
			return true
		}
	}
	return false
}
