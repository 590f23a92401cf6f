package chain

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// Verify says how sure an event must be before it is delivered (HERALD_VERIFY_EVENT).
type Verify string

// The ways to verify.
const (
	VerifyOff       Verify = "off"       // believe the job
	VerifyReceipt   Verify = "receipt"   // in a canonical block with enough confirmations
	VerifyFinalized Verify = "finalized" // in a finalized block, whatever the confirmations
)

// Standing is what the chain says about the event of a job.
type Standing struct {
	// Found is false when the chain says that there is no such event. It stays true while the answer may still come:
	// the transaction waits, or the node has not reached job.BlockNumber yet.
	Found bool
	// Pending says that Found means no more than that: the event is not there yet.
	Pending bool
	// Disagrees names the job's field that the chain contradicts, by its path in the job; "transactionHash" when no
	// such transaction was mined. Set only when Found is false.
	Disagrees string
	// Unlisted says that Disagrees names a registry that is none of the chain's, so that nothing was asked.
	Unlisted bool
	// SearchedFrom and SearchedTo are the blocks in which the event of a job without a transactionHash was looked for
	// and not found. Zero if none were.
	SearchedFrom, SearchedTo uint64
	// Confirmed says that the event is deep enough.
	Confirmed bool
	// ConfirmedIn is how many blocks are missing, at least; 0 when Confirmed.
	ConfirmedIn uint64
	// Wait is how long the missing blocks take at the chain's block time.
	Wait time.Duration
	// Unnamed is the tag (safe, finalized) by which the nodes name no block, so that nothing is confirmed; mostly empty.
	Unnamed string
	// Undated says of a Pending event that the head is old and does not show whether the node is behind: the chain makes
	// blocks only with transactions, or nothing is known of it.
	Undated bool
	// Revoked says that the client revoked this feedback; known for NewFeedback alone, and only where the registry
	// tells.
	Revoked bool
	// Witnessed says of a retraction that the node still has the block that vanished, with the feedback in it. False
	// proves nothing.
	Witnessed bool
	// BlockNumber and BlockHash are where the event is now, which after a reorg is not where the job says. Zero if
	// unknown.
	BlockNumber uint64
	BlockHash   common.Hash
	Timestamp   int64 // of that block
}

func newContradiction(field string) Standing { return Standing{Disagrees: field} }

// Check asks the chain about a job's event: whether one of the chain's registries emitted it, with the job's whole
// content, and its block is canonical. With a transactionHash it is in that receipt, without one it is searched for.
// A FeedbackRevoked for the reason "reorg" is found when its block and its feedback are gone from the chain.
// AgentUpdated has no event to find and is confirmed.
//
// Errors are *UnavailableError and *WrongChainError.
func (c *Client) Check(ctx context.Context, j job.Job, v Verify) (Standing, error) {
	switch v {
	case VerifyOff:
		return Standing{Found: true, Confirmed: true}, nil
	case VerifyReceipt, VerifyFinalized:
	default:
		return Standing{}, fmt.Errorf("chain: %q is no way to verify; off, receipt and finalized are", v)
	}
	if j.ChainID != c.chainID {
		return Standing{}, fmt.Errorf("chain: a job of chain %d for the client of chain %d", j.ChainID, c.chainID)
	}
	if j.Kind == job.KindAgentUpdated {
		return Standing{Found: true, Confirmed: true}, nil
	}
	if field := c.findUnlistedRegistry(j); field != "" {
		return Standing{Disagrees: field, Unlisted: true}, nil
	}
	if field, err := c.checkIdentity(ctx, j); err != nil || field != "" {
		return newContradiction(field), err
	}
	check := c.checkEvent
	if j.IsRetraction() {
		check = c.checkRetraction
	}
	s, err := check(ctx, j, v)
	if s.ConfirmedIn > 0 {
		s.Wait = c.estimateTime(ctx, s.ConfirmedIn)
	}
	return s, err
}

// findUnlistedRegistry names the field of a registry that is none of the chain's: a forger can deploy one that emits
// what a job says.
func (c *Client) findUnlistedRegistry(j job.Job) string {
	registry, field := emitterOf(j)
	listed := c.registries.Reputation
	if j.Kind == job.KindValidationResponse {
		listed = c.registries.Validation
	}
	return firstDifferent(comparison{field, slices.Contains(listed, registry)}, comparison{"identityRegistry",
		slices.Contains(c.registries.Identity, j.IdentityRegistry)})
}

// emitterOf names the registry whose event a job is about, and the field that names it.
func emitterOf(j job.Job) (common.Address, string) {
	if j.Kind == job.KindValidationResponse {
		return j.ValidationRegistry, "validationRegistry"
	}
	return j.ReputationRegistry, "reputationRegistry"
}

// checkIdentity compares the job's identity registry with the one that the emitting registry works with: a genuine
// event must not be taken to an agent of the same number in somebody else's registry. One that does not tell is
// believed.
func (c *Client) checkIdentity(ctx context.Context, j job.Job) (field string, err error) {
	registry, _ := emitterOf(j)
	c.mu.Lock()
	identity, known := c.identities[registry]
	c.mu.Unlock()
	if !known {
		ret, err := c.callView(ctx, "reading getIdentityRegistry", registry, erc8004.PackGetIdentityRegistry())
		var reverted *revert
		switch {
		case errors.As(err, &reverted):
			return "", nil
		case err != nil:
			return "", err
		}
		if identity, err = erc8004.UnpackGetIdentityRegistry(ret); err != nil {
			return "", c.newUnavailable("reading getIdentityRegistry", err)
		}
		c.mu.Lock()
		c.identities[registry] = identity
		c.mu.Unlock()
	}
	if identity != j.IdentityRegistry {
		return "identityRegistry", nil
	}
	return "", nil
}

// checkEvent looks for the event, in the receipt of its transaction if the job names one.
func (c *Client) checkEvent(ctx context.Context, j job.Job, v Verify) (Standing, error) {
	readFeedback, err := erc8004.PackReadFeedback(j.AgentID, j.ClientAddress, j.FeedbackIndex)
	if err != nil {
		return newContradiction("agentId"), nil
	}
	var head *block
	var r *receipt
	var stored hexutil.Bytes
	const op = "reading the event's receipt"
	elems := []rpc.BatchElem{{Method: "eth_getBlockByNumber", Args: []any{latest, false}, Result: &head}}
	if j.TransactionHash != (common.Hash{}) {
		elems = append(elems, rpc.BatchElem{Method: "eth_getTransactionReceipt", Args: []any{j.TransactionHash},
			Result: &r})
	}
	needed := len(elems)
	if j.Kind == job.KindNewFeedback {
		elems = append(elems, rpc.BatchElem{Method: "eth_call",
			Args:   callArgs(j.ReputationRegistry, readFeedback, latest),
			Result: &stored})
	}
	if err := c.sendBatch(ctx, op, elems); err != nil {
		return Standing{}, err
	}
	for _, e := range elems[:needed] {
		if e.Error != nil {
			return Standing{}, c.newUnavailable(op, e.Error)
		}
	}
	if head == nil {
		return Standing{}, c.newUnavailable("reading the head", errNoBlock)
	}
	s, ahead, err := c.checkAhead(ctx, j.BlockNumber, *head)
	if ahead && (r == nil || s.Disagrees != "") { // else the receipt decides
		return s, err
	}

	var e erc8004.Event
	switch {
	case j.TransactionHash == (common.Hash{}):
		e, s, err = c.searchEvent(ctx, j, uint64(head.Number))
	case r == nil:
		return c.checkUnmined(ctx, j, uint64(head.Number))
	default:
		e, s = c.findInReceipt(j, r)
		err = nil
	}
	if err != nil || s.BlockHash == (common.Hash{}) {
		return s, err
	}
	if j.Kind == job.KindNewFeedback {
		if s, err = c.verifyState(j, e, s, stored, elems[needed].Error); err != nil || !s.Found {
			return s, err
		}
	}
	return c.addConfirmations(ctx, s, v, uint64(head.Number))
}

// verifyState adds to a feedback that was found whether it is revoked. answer and failure are what readFeedback
// came to; a revert or another shape only means that the registry does not tell.
func (c *Client) verifyState(j job.Job, e erc8004.Event, s Standing, answer []byte, failure error) (Standing, error) {
	if _, isRevert := findRevert(failure); failure != nil && !isRevert {
		return Standing{}, c.newUnavailable("reading the feedback", failure)
	}
	var stored *erc8004.StoredFeedback
	if f, err := erc8004.UnpackReadFeedback(answer); failure == nil && err == nil {
		stored, s.Revoked = &f, f.Revoked
	}
	if field := compareState(j, e, stored); field != "" {
		return newContradiction(field), nil
	}
	return s, nil
}

// checkUnmined tells a transaction that may still come from one that does not exist. Until the job's block is deep enough
// this node may be on the losing side of a reorg, and whoever made the job on the other.
func (c *Client) checkUnmined(ctx context.Context, j job.Job, head uint64) (Standing, error) {
	needed := c.countConfirmations(ctx)
	if deep := addSaturated(j.BlockNumber, needed); j.BlockNumber > 0 && deep > head {
		return Standing{Found: true, Pending: true, ConfirmedIn: deep - head}, nil
	}
	var tx *struct {
		Hash common.Hash `json:"hash"`
	}
	if err := c.sendCall(ctx, "reading the event's transaction", &tx, "eth_getTransactionByHash",
		j.TransactionHash); err != nil {
		return Standing{}, err
	}
	if tx == nil {
		return newContradiction("transactionHash"), nil
	}
	return Standing{Found: true, Pending: true, ConfirmedIn: addSaturated(needed, 1)}, nil
}

// findInReceipt finds the job's event among the logs of a receipt.
func (c *Client) findInReceipt(j job.Job, r *receipt) (erc8004.Event, Standing) {
	if r.isFailed() {
		return erc8004.Event{}, newContradiction("transactionHash")
	}
	// If no log fits, the one that the job meant says best why: the log at its index, else one of the right kind.
	why := "transactionHash"
	if j.LogIndex != nil {
		why = "logIndex"
	}
	for i := range r.Logs {
		l := r.Logs[i]
		l.BlockNumber, l.BlockHash = uint64(r.BlockNumber), r.BlockHash
		at := j.LogIndex != nil && l.Index == *j.LogIndex
		e, err := erc8004.Decode(l)
		if err != nil || l.Removed {
			continue
		}
		switch comparePosition(j, e) {
		case "blockNumber":
			return erc8004.Event{}, newContradiction("blockNumber")
		case "logIndex":
			continue
		}
		field := compareEvent(j, e)
		if field == "" {
			return e, Standing{Found: true, BlockNumber: e.BlockNumber, BlockHash: e.BlockHash}
		}
		if at || field != "type" {
			why = field
		}
	}
	return erc8004.Event{}, newContradiction(why)
}

// addConfirmations adds to an event that was found how sure it is. That enough blocks are on top is seen by the last of
// them: a node may name a head that is not there.
func (c *Client) addConfirmations(ctx context.Context, s Standing, v Verify, head uint64) (Standing, error) {
	head = max(head, s.BlockNumber) // the receipt may be newer than the head of the same batch
	needed := c.countConfirmations(ctx)
	canonical, top, err := c.readConfirmed(ctx, s.BlockNumber, min(head, addSaturated(s.BlockNumber, needed)))
	if err != nil {
		return Standing{}, err
	}
	if canonical == nil || canonical.Hash != s.BlockHash {
		// The receipt and the chain come from two sides of a reorg, or from two nodes behind one address.
		s.ConfirmedIn = addSaturated(needed, 1)
		return s, nil
	}
	s.Timestamp = int64(min(canonical.Time, math.MaxInt64))
	if s.ConfirmedIn, s.Unnamed, err = c.countMissing(ctx, v, s.BlockNumber, head); err != nil {
		return Standing{}, err
	}
	if c.hasAged(v, *canonical) {
		s.ConfirmedIn = 0
	}
	if s.ConfirmedIn == 0 && top == nil {
		s.ConfirmedIn = 1
	}
	s.Confirmed = s.ConfirmedIn == 0
	return s, nil
}

// readConfirmed reads the block of an event and one above it; nil where the node has none.
func (c *Client) readConfirmed(ctx context.Context, height, above uint64) (canonical, top *block, err error) {
	const op = "reading the event's block"
	elems := []rpc.BatchElem{
		{Method: "eth_getBlockByNumber", Args: []any{formatNumber(height), false}, Result: &canonical},
		{Method: "eth_getBlockByNumber", Args: []any{formatNumber(above), false}, Result: &top},
	}
	if err := c.sendBatch(ctx, op, elems); err != nil {
		return nil, nil, err
	}
	for _, e := range elems {
		if e.Error != nil {
			return nil, nil, c.newUnavailable(op, e.Error)
		}
	}
	return canonical, top, nil
}

// countConfirmations returns how many blocks on top of an event's block confirm it. If a tag does, it is the chain's default,
// below which a node may be on the losing side of a reorg.
func (c *Client) countConfirmations(ctx context.Context) uint64 {
	depth := c.confirmations.Time
	switch {
	case c.confirmations.Tag != "":
		depth = c.known.Confirmations
	case depth == 0:
		return c.confirmations.Blocks
	}
	return c.countBlocks(ctx, depth)
}

// findTag returns the tag whose block confirms events; empty: a number of blocks does.
func (c *Client) findTag(v Verify) string {
	switch {
	case c.known.Untagged:
		return ""
	case v == VerifyFinalized:
		return erc8004.Finalized
	}
	return c.confirmations.Tag
}

// countMissing counts the blocks that are to come before a height is confirmed. unnamed is the tag by which the nodes name
// no block: nothing is confirmed then.
func (c *Client) countMissing(ctx context.Context, v Verify, height, head uint64) (_ uint64, unnamed string, _ error) {
	reached, want := head, height
	tag := c.findTag(v)
	if tag == "" {
		want = addSaturated(height, c.countConfirmations(ctx))
	} else {
		reached = 0
		b, err := c.readTagged(ctx, tag)
		switch {
		case err != nil:
			return 0, "", err
		case b == nil:
			return max(height, 1), tag, nil
		}
		reached = uint64(b.Number)
	}
	return want - min(reached, want), "", nil
}

// hasAged reports whether a block has the depth by its age alone: on a chain that makes blocks only with transactions, the
// blocks on top may never come.
func (c *Client) hasAged(v Verify, b block) bool {
	depth := c.confirmations.Time
	return c.known.Quiet && depth > 0 && c.findTag(v) == "" && findAge(b) >= depth
}

// findAge returns how old a block is, by this machine's clock. It is negative if the block's time is still to come.
func findAge(b block) time.Duration {
	return time.Since(time.Unix(int64(min(b.Time, math.MaxInt64)), 0))
}

const (
	// maxAhead is how far above a fresh head a job's block may be and still be waited for (DESIGN §3).
	maxAhead = time.Hour
	// maxFreshAge is how old a head is at most that shows how far the chain is.
	maxFreshAge = 2 * time.Minute
)

// checkAhead decides about a job whose block is above the node's head: the node is behind the indexer's, or there is no
// such block. A fresh head refutes a height that the chain does not reach within maxAhead; an old one refutes nothing.
func (c *Client) checkAhead(ctx context.Context, height uint64, head block) (s Standing, ahead bool, _ error) {
	number := uint64(head.Number)
	if height <= number {
		return s, false, nil
	}
	far := height-number > c.countBlocks(ctx, maxAhead)
	age, regular := findAge(head), erc8004.MakesRegularBlocks(c.chainID)
	switch {
	case far && age <= maxFreshAge:
		return newContradiction("blockNumber"), true, nil
	case far && regular:
		return s, true, c.newUnavailable("looking for the event's block", fmt.Errorf(
			"the node's newest block %d is %s old, and the job's block %d is more than %s above it", number,
			age.Round(time.Second), height, maxAhead))
	}
	return Standing{Found: true, Pending: true, ConfirmedIn: addSaturated(height-number, c.countConfirmations(ctx)),
		Undated: age > maxFreshAge && (c.known.Quiet || far)}, true, nil
}

// addSaturated keeps a height that a stranger or a node names from wrapping around to a confirmed one.
func addSaturated(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
