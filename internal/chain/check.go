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

// Verify is the check that an event must pass before it is delivered (HERALD_VERIFY_EVENT).
type Verify string

// The values of Verify.
const (
	VerifyOff       Verify = "off"       // the job is believed
	VerifyReceipt   Verify = "receipt"   // the event must be in a canonical block with enough confirmations
	VerifyFinalized Verify = "finalized" // the event must be in a finalized block; the confirmations do not matter
)

// Standing is the result of checking a job's event against the chain.
type Standing struct {
	// Found is false if the chain has no such event. It is true while the event may still appear: the transaction is
	// not mined yet, or the node has not reached job.BlockNumber yet.
	Found bool
	// Pending is true if Found is true only because the event may still appear.
	Pending bool
	// Disagrees is the path of the job's field that the chain contradicts. It is "transactionHash" if no such
	// transaction was mined. It is set only if Found is false.
	Disagrees string
	// Unlisted is true if Disagrees names a registry that is not one of the chain's registries. No node was asked
	// then.
	Unlisted bool
	// SearchedFrom and SearchedTo are the first and last block of the range that was searched without success for the
	// event of a job without a transactionHash. They are zero if no range was searched.
	SearchedFrom, SearchedTo uint64
	// Confirmed is true if the event has enough confirmations.
	Confirmed bool
	// ConfirmedIn is the minimum number of blocks that are missing until the event is confirmed; 0 if Confirmed is
	// true.
	ConfirmedIn uint64
	// Wait is the time that the missing blocks take at the chain's block time, at most 24 hours.
	Wait time.Duration
	// Unnamed is the tag (safe or finalized) for which the nodes return no block, so that no event is confirmed. It
	// is usually empty.
	Unnamed string
	// Undated is true for a Pending event if the head is old and does not show whether the node is behind, because
	// the chain makes blocks only with transactions or is unknown.
	Undated bool
	// Revoked is true if the client revoked this feedback. It is set only for NewFeedback, and only if the registry
	// reports it.
	Revoked bool
	// Witnessed is true for a retraction if the node still has the block that vanished, with the feedback in it.
	// False proves nothing.
	Witnessed bool
	// BlockNumber and BlockHash identify the block that contains the event now. After a reorg this can differ from
	// the job's block. They are zero if the block is unknown.
	BlockNumber uint64
	BlockHash   common.Hash
	Timestamp   int64 // the timestamp of that block, in seconds
}

// newContradiction returns a Standing whose event was not found because the chain contradicts a field. An empty field
// returns the zero Standing.
func newContradiction(field string) Standing { return Standing{Disagrees: field} }

// Check compares a job's event with the chain. The event is found if one of the chain's registries emitted it with
// the job's whole content. A job with a transactionHash names the receipt that must contain the event; for a job
// without one, Check searches the chain's logs. The event is confirmed if its block is canonical and deep enough for
// v. A FeedbackRevoked with the reason "reorg" is found if its block and its feedback are gone from the chain.
// AgentUpdated has no event and is always confirmed.
//
// The errors are *UnavailableError, *WrongChainError, and untyped errors for an invalid v or a job of another chain.
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

// findUnlistedRegistry returns the job's field that names a registry which is not one of the chain's, or "". An
// attacker can deploy a registry that emits any event that a job claims.
func (c *Client) findUnlistedRegistry(j job.Job) string {
	registry, field := emitterOf(j)
	listed := c.registries.Reputation
	if j.Kind == job.KindValidationResponse {
		listed = c.registries.Validation
	}
	return firstDifferent(comparison{field, slices.Contains(listed, registry)}, comparison{"identityRegistry",
		slices.Contains(c.registries.Identity, j.IdentityRegistry)})
}

// emitterOf returns the registry whose event a job describes, and the name of the job's field that contains it.
func emitterOf(j job.Job) (common.Address, string) {
	if j.Kind == job.KindValidationResponse {
		return j.ValidationRegistry, "validationRegistry"
	}
	return j.ReputationRegistry, "reputationRegistry"
}

// checkIdentity compares the job's identity registry with the one that the emitting registry reports. Otherwise a
// genuine event could be delivered to the agent with the same number in another identity registry. If the emitting
// registry reverts the call, the job's value is accepted. field is the contradicted field, or "".
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

// checkEvent looks for the event: in the receipt of its transaction if the job names one, otherwise in the chain's
// logs.
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
	if ahead && (r == nil || s.Disagrees != "") { // otherwise the receipt decides
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

// verifyState compares a feedback that was found with the registry's state, and sets Revoked. answer and failure are
// the result of calling readFeedback. A revert or an answer of another form only means that the registry does not
// report the state.
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

// checkUnmined distinguishes a transaction that may still be mined from one that does not exist. Until the job's
// block is deep enough, this node may be on the losing side of a reorg and the node of the job's sender on the other.
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
	// If no log matches, report the field that differs in the log that the job most likely means: the log at the
	// job's index, otherwise a log of the job's kind.
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

// addConfirmations adds the confirmations to a Standing whose event was found. It requires the last of the confirming
// blocks to exist, because a node may report a head that does not exist.
func (c *Client) addConfirmations(ctx context.Context, s Standing, v Verify, head uint64) (Standing, error) {
	head = max(head, s.BlockNumber) // the receipt may be newer than the head in the same batch
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

// readConfirmed reads the block of an event and one block above it. A block is nil if the node does not have it.
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

// countConfirmations returns the number of blocks on top of an event's block that confirm it. If a tag confirms
// events, it returns the chain's default: below that depth, a node may be on the losing side of a reorg.
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

// findTag returns the tag of the block that confirms events. It is empty if a number of blocks confirms them.
func (c *Client) findTag(v Verify) string {
	switch {
	case c.known.Untagged:
		return ""
	case v == VerifyFinalized:
		return erc8004.Finalized
	}
	return c.confirmations.Tag
}

// countMissing returns the number of blocks that are missing until the block at height is confirmed. unnamed is the
// tag for which the nodes return no block; in that case nothing is confirmed.
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

// hasAged reports whether the age of a block is enough to confirm it. On a chain that makes blocks only with
// transactions, the blocks on top may never come.
func (c *Client) hasAged(v Verify, b block) bool {
	depth := c.confirmations.Time
	return c.known.Quiet && depth > 0 && c.findTag(v) == "" && findAge(b) >= depth
}

// findAge returns the age of a block by the local clock. It is negative if the block's timestamp is in the future.
func findAge(b block) time.Duration {
	return time.Since(time.Unix(int64(min(b.Time, math.MaxInt64)), 0))
}

const (
	// maxAhead bounds how far above a fresh head a job's block may be. A job whose block the chain does not reach
	// within maxAhead is refuted (docs/design/chain.md).
	maxAhead = time.Hour
	// maxFreshAge is the maximum age of a fresh head, which shows how far the chain has grown.
	maxFreshAge = 2 * time.Minute
)

// checkAhead decides about a job whose block is above the node's head: either the node is behind the indexer's node,
// or there is no such block. A fresh head refutes a height that the chain does not reach within maxAhead. An old head
// refutes nothing. ahead is false if the block is not above the head.
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

// addSaturated returns a+b, or the maximum if the sum overflows. A height that a job or a node names must not wrap
// around to a confirmed one.
func addSaturated(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}
