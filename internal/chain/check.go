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

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
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
	// Event is the event as a job: its content and position from the log, its identity registry from the emitting
	// contract, and the default action. For a retraction it is the job. It is nil while the event is not found in a
	// block.
	Event *job.Job
	// Disagrees is the path of the job's field because of which the event was not found. It is "transactionHash" if no
	// such transaction was mined. It is set only if Found is false.
	Disagrees string
	// Unseen is true if the node does not know the job's transaction, and the job names no block. A node that lags
	// behind the node of the job's sender may know the transaction later.
	Unseen bool
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
	// Revoked is true if the client revoked this feedback, and both events are confirmed. It is set only for
	// NewFeedback, and only if the registry reports it.
	Revoked bool
	// Revoking is true if Confirmed is false only because the client's revocation is not confirmed yet.
	Revoking bool
	// Witnessed is true for a retraction if the node still has the block that vanished, with the feedback in it.
	// False proves nothing.
	Witnessed bool
	// BlockNumber and BlockHash identify the block that contains the event now. After a reorg this can differ from
	// the job's block. They are zero if the block is unknown.
	BlockNumber uint64
	BlockHash   common.Hash
	// Timestamp is the timestamp of that block, in seconds; 0 if it is unknown or after job.MaxTimestamp.
	Timestamp int64
}

// newContradiction returns a Standing whose event was not found because the chain contradicts a field. An empty field
// returns the zero Standing.
func newContradiction(field string) Standing { return Standing{Disagrees: field} }

// Check reads the event that a job's key names. One of the chain's registries must have emitted it. A job with a
// transactionHash names the receipt that contains the event; without one, Check searches the chain's logs. The key of a
// response or validation contains the position, so only the log at that position counts. Other fields of the job have
// no effect, except for older forms of NewFeedback (pickFeedback). The event is confirmed if its block is canonical and
// deep enough for v. A FeedbackRevoked with the reason "reorg" is found if its block and its feedback are gone from the
// chain. AgentUpdated has no event and is always confirmed.
//
// The errors are *UnavailableError, *WrongChainError, a *job.Refusal for an event that is no valid job, and untyped
// errors for an invalid v or a job of another chain.
func (c *Client) Check(ctx context.Context, j job.Job, v Verify) (Standing, error) {
	switch v {
	case VerifyOff:
		return Standing{Found: true, Confirmed: true}, nil
	case VerifyReceipt, VerifyFinalized:
	default:
		return Standing{}, fmt.Errorf("chain: %q is no way to verify; off, receipt and finalized are", v)
	}
	if j.ChainID != c.ChainID() {
		return Standing{}, fmt.Errorf("chain: a job of chain %d for the client of chain %d", j.ChainID, c.ChainID())
	}
	if j.Kind == job.KindAgentUpdated {
		return Standing{Found: true, Confirmed: true}, nil
	}
	registry, field := emitterOf(j)
	if !slices.Contains(c.listEmitters(j.Kind), registry) {
		return Standing{Disagrees: field, Unlisted: true}, nil
	}
	var err error
	if j.IdentityRegistry, err = c.findIdentity(ctx, registry); err != nil {
		return Standing{}, err
	}
	if !slices.Contains(c.registries.Identity, j.IdentityRegistry) {
		return Standing{Disagrees: "identityRegistry", Unlisted: true}, nil
	}
	var s Standing
	if j.IsRetraction() {
		if s, err = c.checkRetraction(ctx, j, v); s.Found && !s.Pending {
			s.Event = &j
		}
	} else {
		s, err = c.checkEvent(ctx, j, v)
	}
	if s.ConfirmedIn > 0 {
		s.Wait = c.estimateTime(ctx, s.ConfirmedIn)
	}
	return s, err
}

// listEmitters returns the registries whose events of a kind count. An attacker can deploy a registry that emits any
// event.
func (c *Client) listEmitters(k job.Kind) []common.Address {
	if k == job.KindValidationResponse {
		return c.registries.Validation
	}
	return c.registries.Reputation
}

// emitterOf returns the registry whose event a job describes, and the name of the job's field that contains it.
func emitterOf(j job.Job) (common.Address, string) {
	if j.Kind == job.KindValidationResponse {
		return j.ValidationRegistry, "validationRegistry"
	}
	return j.ReputationRegistry, "reputationRegistry"
}

// errZeroIdentity means that a registry reports no identity registry. Nodes without the registry's state answer zeros.
var errZeroIdentity = errors.New("the registry reports the zero address: the node may lack the registry's state")

// findIdentity returns the identity registry of an emitting registry: the one that it reports, or the chain's first if
// it reverts the call. The job's value has no effect, because it chooses the agent that is called.
func (c *Client) findIdentity(ctx context.Context, registry common.Address) (common.Address, error) {
	c.mu.Lock()
	identity, known := c.identities[registry]
	c.mu.Unlock()
	if known {
		return identity, nil
	}
	const op = "reading getIdentityRegistry"
	ret, err := c.CallView(ctx, op, registry, erc8004.PackGetIdentityRegistry(), 0)
	var reverted *node.Revert
	switch {
	case errors.As(err, &reverted):
		return c.registries.Default().Identity, nil
	case err != nil:
		return common.Address{}, err
	}
	if identity, err = erc8004.UnpackGetIdentityRegistry(ret); err == nil && identity == (common.Address{}) {
		err = errZeroIdentity
	}
	if err != nil {
		return common.Address{}, c.NewUnavailable(op, err)
	}
	if slices.Contains(c.registries.Identity, identity) { // otherwise the node may have lied, and events are refused
		c.mu.Lock()
		c.identities[registry] = identity
		c.mu.Unlock()
	}
	return identity, nil
}

// checkEvent looks for the event: in the receipt of its transaction if the job names one, otherwise in the chain's
// logs.
func (c *Client) checkEvent(ctx context.Context, j job.Job, v Verify) (Standing, error) {
	readFeedback, err := erc8004.PackReadFeedback(j.AgentID, j.ClientAddress, j.FeedbackIndex)
	if err != nil {
		return newContradiction("agentId"), nil
	}
	var head *node.Block
	var r *node.Receipt
	var answer hexutil.Bytes
	const op = "reading the event's receipt"
	elems := []rpc.BatchElem{node.TaggedCall(node.Latest, &head)}
	if j.TransactionHash != (common.Hash{}) {
		elems = append(elems, rpc.BatchElem{Method: "eth_getTransactionReceipt", Args: []any{j.TransactionHash},
			Result: &r})
	}
	needed := len(elems)
	if j.Kind == job.KindNewFeedback {
		elems = append(elems, rpc.BatchElem{Method: "eth_call",
			Args:   node.CallArgs(j.ReputationRegistry, readFeedback, node.Latest),
			Result: &answer})
	}
	// If the job names the event's block, and enough blocks are above it, one request is enough.
	var b depthBlocks
	asked := len(elems)
	if top := addSaturated(j.BlockNumber, c.countConfirmations(ctx)); j.BlockNumber > 0 && top <= c.readNewest() {
		elems = append(elems, b.listCalls(j.BlockNumber, top)...)
	}
	if _, err := c.SendBatch(ctx, op, elems); err != nil {
		return Standing{}, err
	}
	for _, e := range elems[asked:] {
		if e.Error != nil {
			b = depthBlocks{} // addConfirmations reads them
		}
	}
	for _, e := range elems[:needed] {
		if e.Error != nil {
			return Standing{}, c.NewUnavailable(op, e.Error)
		}
	}
	if head == nil {
		return Standing{}, c.NewUnavailable("reading the head", node.ErrNoBlock)
	}
	c.noteNewest(uint64(head.Number))
	c.CompareHeads(ctx, *head)
	if r == nil { // otherwise the receipt decides
		if s, ahead, err := c.checkAhead(ctx, j.BlockNumber, *head); ahead {
			return s, err
		}
	}
	var stored *erc8004.StoredFeedback
	if j.Kind == job.KindNewFeedback {
		if stored, err = c.readStored(answer, elems[needed].Error); err != nil {
			return Standing{}, err
		}
	}

	if j.TransactionHash != (common.Hash{}) && r == nil {
		if r, err = c.findReceipt(ctx, op, j.TransactionHash); err != nil {
			return Standing{}, err
		}
	}
	var e erc8004.Event
	var s Standing
	switch {
	case j.TransactionHash == (common.Hash{}):
		e, s, err = c.searchEvent(ctx, j, stored, uint64(head.Number))
	case r == nil:
		s, err = c.checkUnmined(ctx, j, uint64(head.Number))
	default:
		e, s, err = c.findInReceipt(ctx, j, stored, r)
	}
	switch {
	case err != nil || s.Pending:
		return s, err
	case !s.Found:
		return s, c.checkStale(j, s, *head)
	}
	event, err := eventlog.Job(e, c.ChainID(), erc8004.Deployment{Identity: j.IdentityRegistry}, 0,
		job.Limits{Registries: func(uint64) (erc8004.Registries, bool) { return c.registries, true }})
	if err != nil {
		return Standing{}, fmt.Errorf("log %d of transaction %s: %w", e.LogIndex, e.TxHash, err)
	}
	s.BlockNumber, s.BlockHash, s.Event = e.BlockNumber, e.BlockHash, &event
	if s, err = c.addConfirmations(ctx, s, v, uint64(head.Number), b); err != nil {
		return s, err
	}
	event.Timestamp = s.Timestamp
	if s.Confirmed && stored != nil && stored.Revoked {
		return c.checkRevocation(ctx, s, v, j.ReputationRegistry, readFeedback, *head)
	}
	return s, nil
}

// checkRevocation decides whether a confirmed feedback that is revoked at the head counts as revoked. If it is not
// revoked at the newest confirmed block, a reorg may still remove the revocation. The feedback then counts as not
// confirmed for now. If the node has dropped the state of that block, or refuses the call for good, the feedback counts
// as revoked. After another error, checkRevocation fails, because a later answer may show that the revocation is not
// confirmed.
func (c *Client) checkRevocation(
	ctx context.Context, s Standing, v Verify, registry common.Address, readFeedback []byte, head node.Block,
) (Standing, error) {
	newest := uint64(head.Number)
	confirmed := newest
	if tag := c.findTag(v); tag != "" {
		b, err := c.ReadTagged(ctx, tag)
		if err != nil {
			return Standing{}, err
		}
		if confirmed = 0; b != nil {
			confirmed = uint64(b.Number)
		}
	} else if !c.hasAged(v, head) {
		confirmed -= min(confirmed, c.countConfirmations(ctx))
	}
	confirmed = max(confirmed, s.BlockNumber)
	const op = "reading whether the feedback's revocation is confirmed"
	var answer hexutil.Bytes
	elems := []rpc.BatchElem{{Method: "eth_call", Result: &answer,
		Args: node.CallArgs(registry, readFeedback, hexutil.EncodeUint64(confirmed))}}
	if _, err := c.SendBatch(ctx, op, elems); err != nil {
		return Standing{}, err
	}
	ret, failure := c.ReadAnswer(op, registry, answer, elems[0].Error)
	_, reverted := errors.AsType[*node.Revert](failure)
	if failure != nil && !reverted && !node.IsStateMissing(failure) && !node.IsRefusedForGood(failure) {
		return Standing{}, failure
	}
	stored, err := erc8004.UnpackReadFeedback(ret)
	s.Revoking = failure == nil && err == nil && !stored.Revoked
	if s.Revoked = !s.Revoking; s.Revoking {
		s.Confirmed, s.ConfirmedIn = false, max(newest-min(newest, confirmed), 1) // its block may be the head
	}
	return s, nil
}

// readStored returns the registry's stored feedback from the result of calling readFeedback. It returns nil if the
// registry reverts the call or answers in another form, because then the registry does not report its state.
func (c *Client) readStored(answer []byte, failure error) (*erc8004.StoredFeedback, error) {
	if _, isRevert := node.FindRevert(failure); failure != nil && !isRevert {
		return nil, c.NewUnavailable("reading the feedback", failure)
	}
	f, err := erc8004.UnpackReadFeedback(answer)
	if failure != nil || err != nil {
		return nil, nil
	}
	return &f, nil
}

// findInReceipt finds the event of the job's key among the logs of a receipt.
func (c *Client) findInReceipt(
	ctx context.Context, j job.Job, stored *erc8004.StoredFeedback, r *node.Receipt,
) (erc8004.Event, Standing, error) {
	why := "transactionHash"
	var found []erc8004.Event
	for _, l := range r.Logs {
		l.BlockNumber, l.BlockHash, l.TxHash = uint64(r.BlockNumber), r.BlockHash, j.TransactionHash
		e, err := erc8004.Decode(l)
		if err != nil || l.Removed {
			continue
		}
		switch field := compareKey(j, e); field {
		case "":
			found = append(found, e)
		case "type":
		default:
			why = field // the field that differs in a log of the job's kind
		}
	}
	if len(found) == 0 || r.IsFailed() {
		return erc8004.Event{}, newContradiction(why), nil
	}
	e, field, err := c.pickFeedback(ctx, j, stored, found)
	if err != nil || field != "" {
		return e, newContradiction(field), err
	}
	return e, Standing{Found: true}, nil
}

// depthBlocks are the block of an event, and the last of the blocks that confirm it.
type depthBlocks struct{ own, top *node.Block }

// listCalls returns the calls that read the blocks with these numbers.
func (b *depthBlocks) listCalls(own, top uint64) []rpc.BatchElem {
	return []rpc.BatchElem{node.BlockCall(own, &b.own), node.BlockCall(top, &b.top)}
}

// hasBlocks reports whether b has the blocks with these numbers.
func (b *depthBlocks) hasBlocks(own, top uint64) bool {
	return b.own != nil && b.top != nil && uint64(b.own.Number) == own && uint64(b.top.Number) == top
}

// addConfirmations adds the confirmations to a Standing whose event was found. It requires the last of the confirming
// blocks to exist, because a node may report a head that does not exist. b has the blocks if they came with the event.
// Otherwise addConfirmations reads them.
func (c *Client) addConfirmations(
	ctx context.Context, s Standing, v Verify, head uint64, b depthBlocks,
) (Standing, error) {
	head = max(head, s.BlockNumber) // the receipt may be newer than the head in the same batch
	needed := c.countConfirmations(ctx)
	own, top := s.BlockNumber, min(head, addSaturated(s.BlockNumber, needed))
	if !b.hasBlocks(own, top) {
		b = depthBlocks{}
		if _, err := c.SendAll(ctx, "reading the event's block", b.listCalls(own, top)...); err != nil {
			return Standing{}, err
		}
	}
	canonical := b.own
	if canonical == nil || canonical.Hash != s.BlockHash {
		// The receipt and the chain come from two sides of a reorg, or from two nodes behind one address.
		s.ConfirmedIn = addSaturated(needed, 1)
		return s, nil
	}
	if canonical.Time <= job.MaxTimestamp {
		s.Timestamp = int64(canonical.Time)
	}
	var err error
	if s.ConfirmedIn, s.Unnamed, err = c.countMissing(ctx, v, s.BlockNumber, head); err != nil {
		return Standing{}, err
	}
	if c.hasAged(v, *canonical) {
		s.ConfirmedIn = 0
	}
	if s.ConfirmedIn == 0 && b.top == nil {
		s.ConfirmedIn = 1
	}
	if s.Confirmed = s.ConfirmedIn == 0; s.Confirmed {
		c.noteConfirmed(s.BlockNumber)
	}
	return s, nil
}

// countBlocks returns the number of blocks that the chain makes in d, rounded up.
func (c *Client) countBlocks(ctx context.Context, d time.Duration) uint64 {
	each := c.BlockTime(ctx)
	return uint64((d + each - 1) / each)
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
		b, err := c.ReadTagged(ctx, tag)
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
func (c *Client) hasAged(v Verify, b node.Block) bool {
	depth := c.confirmations.Time
	return c.known.Quiet && depth > 0 && c.findTag(v) == "" && b.Age() >= depth
}

// addSaturated returns a+b, or the maximum if the sum overflows. A height that a job or a node names must not wrap
// around to a confirmed one.
func addSaturated(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// estimateTime returns the time that the chain needs for the given number of blocks, at most maxEstimate. The bound
// is needed because the number may come from a node or from a job.
func (c *Client) estimateTime(ctx context.Context, blocks uint64) time.Duration {
	each := c.BlockTime(ctx)
	return time.Duration(min(blocks, uint64(maxEstimate/each))) * each
}

// maxEstimate bounds estimateTime.
const maxEstimate = 24 * time.Hour
