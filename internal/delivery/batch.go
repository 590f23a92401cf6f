package delivery

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/mcpcall/arguments"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
	"github.com/google/uuid"
)

// BatchTool is the name of the tool that receives several pieces of feedback in one call, at agents that offer it
// (docs/tools).
const BatchTool = "agent.receiveFeedbackBatch"

const (
	// MaxBatch is the largest number of deliveries in one call, including the leader's.
	MaxBatch = store.MaxFollowers + 1
	// maxBatchBytes bounds the arguments of a batch, in bytes of JSON.
	maxBatchBytes = 4 << 20
	// maxBatchAgents bounds Executor.batches. The limit of an evicted agent is found again by the next batches.
	maxBatchAgents = 4096
)

// batch is a call with several deliveries: the leader's, whose attempt makes the call, and the followers'. Each
// delivery has its own row, attempt and outcome.
type batch struct {
	leader  uuid.UUID    // delivery id
	members []*follower  // followers that are delivered in the call
	failed  []*follower  // followers that failed before the call; each failure is recorded
	single  preparedCall // the call of the leader's delivery alone, which is made if the agent refuses the batch
	size    int          // number of deliveries in the call, including the leader's; 0: the leader is called alone
}

// batchLimit is how many deliveries an agent accepts in one call, as this process learnt it from calls. It is used for
// limitTTL after the time learnt.
type batchLimit struct {
	// refused identifies a tool list by the time at which it was fetched (its field Listed). The list contains the
	// batch tool, but the agent refused a call of that tool as unknown. While this list is in use, each call contains
	// one delivery. Zero: no list.
	refused time.Time
	most    int // largest number of deliveries in one call; 0: the agent has not limited it
	learnt  time.Time
}

// limitTTL is how long a batchLimit is used. After that, larger batches are tried again.
const limitTTL = 10 * time.Minute

// gatherBatch claims more deliveries of the agent and adds them as followers to the prepared call of the leader, if the
// agent offers a batch tool. If the batch cannot be made, the claims are released at no cost of an attempt, and the
// leader is delivered alone.
func (e *Executor) gatherBatch(ctx context.Context, a *attempt) {
	most := e.mayBatch(a)
	if most < 2 {
		return
	}
	tool, most := e.findBatchTool(ctx, a, most)
	if most < 2 {
		return
	}
	own, err := fitItem(ctx, e, a, tool)
	if err != nil {
		e.Logger.Debug("an agent's batch tool does not accept all that its other tool accepts", "delivery", a.claim.ID, "error", err)
		return
	}
	followers := e.claimFollowers(ctx, a, most-1)
	if len(followers) == 0 {
		return
	}

	b := &batch{leader: a.claim.ID, single: a.call}
	a.batch = b
	e.prepareFollowers(ctx, a, tool, followers)
	back := b.sortFollowers(e, followers, maxBatchBytes-len(own.Sent))
	if err := e.composeBatch(a, tool, own); err != nil {
		e.Logger.Debug("a batch is not sent", "delivery", a.claim.ID, "error", err)
		back, b.members = append(back, b.members...), nil
	}
	e.giveBack(ctx, back)
}

// mayBatch returns how many deliveries the call may contain, including that of the leader, before the batch tool's
// schema is known: batchSize, or 1 (alone) if the job, its headers, a replay, or the agent being a newcomer rules out a
// batch.
func (e *Executor) mayBatch(a *attempt) int {
	action := a.claim.Job.Action
	switch {
	case a.claim.Job.Kind != job.KindNewFeedback, action.ToolName != feedbackTool, len(action.PayloadTemplate) > 0,
		a.endpoint.ownHeaders, len(a.claim.SealedHeaders) > 0, a.claim.Replay:
		return 1
	case e.Followers == nil, a.slots != nil: // newcomers get one delivery per call
		return 1
	}
	return e.batchSize(a)
}

// batchSize returns how many deliveries one call may contain: the least of the operator's limit, the agent's wish and
// the known batchLimit. It returns 1 if the agent refused the batch tool of its current tool list.
func (e *Executor) batchSize(a *attempt) int {
	most := e.BatchSize
	if wish := a.agentWishes().BatchSize; wish > 0 {
		most = min(most, wish)
	}
	if known, ok := e.batches.Get(a.claim.Agent()); ok && e.Now().Sub(known.learnt) < limitTTL {
		if a.call.listing != nil && known.refused.Equal(a.call.listing.Listed) {
			return 1
		}
		if known.most > 0 {
			most = min(most, known.most)
		}
	}
	return most
}

// findBatchTool returns the agent's batch tool, and the smaller of most and the maxItems in its schema. The number is 0
// if the agent has no batch tool, or if its tool list or the schema of the tool is missing.
func (e *Executor) findBatchTool(ctx context.Context, a *attempt, most int) (mcpcall.Tool, int) {
	named := a.claim.Job
	named.Action.ToolName = BatchTool
	names, err := ToolNames(named, e.ToolAliases, a.server)
	if err != nil || a.call.listing == nil {
		return mcpcall.Tool{}, 0
	}
	if _, ok := mcpcall.Find(a.call.listing.Tools, names[0], names[1:]); !ok {
		return mcpcall.Tool{}, 0
	}
	listing, err := e.listTools(ctx, a, cachedTools)
	if err != nil {
		return mcpcall.Tool{}, 0
	}
	tool, ok := mcpcall.Find(listing.Tools, names[0], names[1:])
	if !ok || len(tool.InputSchema) == 0 {
		return tool, 0
	}
	var schema struct {
		Properties struct {
			Deliveries struct {
				MaxItems *float64 `json:"maxItems"`
			} `json:"deliveries"`
		} `json:"properties"`
	}
	if json.Unmarshal(tool.InputSchema, &schema) == nil && schema.Properties.Deliveries.MaxItems != nil {
		most = min(most, int(max(0, min(*schema.Properties.Deliveries.MaxItems, MaxBatch))))
	}
	return tool, most
}

// fitItem fits the arguments of one delivery to the schema of the items in the batch tool's list, and returns the item.
// It returns an error if the tool does not accept the arguments as one object in that list.
func fitItem(ctx context.Context, e *Executor, a *attempt, tool mcpcall.Tool) (Fitted, error) {
	release, err := e.Decoding.Acquire(ctx, len(tool.InputSchema)+len(a.file.Content))
	if err != nil {
		return Fitted{}, err
	}
	defer release()
	args := a.claim.Job.Arguments(a.file.File, a.claim.ID.String())
	whole, err := mcpcall.Fit(tool, map[string]any{deliveriesName: []any{args}})
	if err != nil {
		return Fitted{}, err
	}
	list, _ := whole[deliveriesName].([]any)
	if len(list) != 1 || len(whole) != 1 {
		return Fitted{}, errors.New("the batch tool accepts no list of deliveries")
	}
	item, ok := list[0].(map[string]any)
	if !ok {
		return Fitted{}, errors.New("the batch tool accepts no deliveries that are objects")
	}
	var out Fitted
	out.Arguments, out.Cleaned = arguments.Sanitize(item)
	if out.Sent, err = json.Marshal(out.Arguments); err != nil {
		return Fitted{}, fmt.Errorf("write the arguments as JSON: %w", err)
	}
	return out, nil
}

// deliveriesName is the only argument of the batch tool.
const deliveriesName = "deliveries"

// composeBatch replaces the leader's call by the call of the whole batch, if there are followers. own contains the
// leader's arguments as an item of the batch. It returns an error, and leaves the leader's call unchanged, if the
// followers' leases are too short for the call or the memory for arguments is in use.
func (e *Executor) composeBatch(a *attempt, tool mcpcall.Tool, own Fitted) error {
	b := a.batch
	if len(b.members) == 0 {
		return nil
	}
	timeout, _ := e.callTimeout(a)
	if left := b.members[0].lease.left(e.Now()); left < timeout+e.LeaseMargin {
		return fmt.Errorf("of its leases %s are left", left)
	}
	items, size := []any{own.Arguments}, len(own.Sent)
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %s", tool.Name, own.Sent)
	for _, f := range b.members {
		items, size = append(items, f.call.arguments), size+f.size
	}
	release, err := e.reserveArguments(a, size)
	if err != nil {
		return err
	}
	a.call = preparedCall{tool: tool.Name, arguments: map[string]any{deliveriesName: items}, sanitized: own.Cleaned,
		recorded: store.KeepSide(own.Sent), digest: [sha256.Size]byte(sum.Sum(nil)), release: release,
		listing: b.single.listing}
	b.size = len(items)
	for _, f := range b.members {
		f.batch = b
		f.answer.called, f.failure = true, errUnanswered // the outcome in case of a panic before splitAnswer
		e.beginStage(f.attempt, "call")
	}
	return nil
}

var errUnanswered = retry.Fail(reason.InternalError, "a fault of Herald's own in a call of several deliveries: its log has the stack")

// dissolveBatch reports whether the agent refused the batch, so that the caller must make the leader's call alone: the
// agent may accept each delivery by itself. In that case dissolveBatch has restored that call, released the followers,
// and reduced the batchLimit of the agent. It returns false, and changes nothing in the attempt, if failure is not such
// a refusal.
func (e *Executor) dissolveBatch(ctx context.Context, a *attempt, failure error) bool {
	if !a.inBatch() || failure == nil {
		return false
	}
	learnt := batchLimit{most: a.batch.size / 2, learnt: e.Now()}
	switch {
	case retry.NotATool(failure):
		if a.batch.single.listing != nil {
			learnt.refused = a.batch.single.listing.Listed
		}
	case !refusesRequest(failure):
		return false
	}
	e.batches.Add(a.claim.Agent(), learnt)
	e.Logger.Info("an agent refuses a call of several deliveries, which are delivered one by one", "delivery", a.claim.ID,
		"batch", a.batch.size, "error", failure)
	e.releaseArguments(&a.call)
	a.call = a.batch.single
	e.giveBack(ctx, a.batch.members)
	a.batch.members, a.batch.size = nil, 0
	return true
}

// refusesRequest reports whether the request was rejected as such, so that no tool was executed: it was too large, or
// the agent answered an HTTP status 4xx other than 404, or a JSON-RPC error, that counts as bad_response.
func refusesRequest(failure error) bool {
	var call *mcpcall.CallError
	var large *mcpcall.RequestTooLargeError
	return errors.As(failure, &large) ||
		errors.As(failure, &call) && (call.Status/100 == 4 && call.Status != http.StatusNotFound || call.Code != 0) &&
			retry.Classify(failure).Reason == reason.BadResponse
}

// splitAnswer distributes the answer to a batch: it sets the answer and failure of each follower and the answer of the
// leader, and returns the failure of the leader's delivery (nil: delivered). failure is that of the whole call (nil:
// the agent answered). If the agent received nothing, the followers are released at no cost of an attempt. Without a
// batch, splitAnswer returns failure.
func (e *Executor) splitAnswer(ctx context.Context, a *attempt, failure error) error {
	if !a.inBatch() {
		return failure
	}
	b := a.batch
	e.Metrics.batchSize.Observe(float64(b.size))
	if a.answer.IsError { // most SDKs answer any exception like this; it must not end all deliveries
		e.batches.Add(a.claim.Agent(), batchLimit{most: 1, learnt: e.Now()})
		failure = retry.Fail(reason.ServerError, "the agent's tool answered a call of several deliveries with an error, which does not say "+
			"of which; they come one by one now: "+text.Excerpt(a.answer.Text, 200))
	} else {
		e.learnLimit(a, failure)
	}
	if failure != nil && !a.answer.called { // the agent received nothing, so the followers are released at no cost
		e.giveBack(ctx, b.members)
		b.members = nil
		return failure
	}

	results := map[string]itemResult{}
	if failure == nil {
		results = e.readItemResults(ctx, a.answer.Answer)
	}
	whole := a.answer
	for _, f := range b.members {
		f.answer, f.failure = splitOne(whole, failure, results, f.claim.ID)
		f.answer.Preferences = nil // the leader's record contains them
		f.failure = e.endStages(f.attempt, f.failure, nil)
	}
	a.answer, failure = splitOne(whole, failure, results, a.claim.ID)
	return failure
}

// learnLimit changes the batchLimit of the agent after a batch. If the call failed because the endpoint is unwell or
// did not answer, the limit becomes half of the batch's size, because a call with so many deliveries may exceed its
// timeout. After a success, an existing limit doubles, up to MaxBatch.
func (e *Executor) learnLimit(a *attempt, failure error) {
	known, _ := e.batches.Get(a.claim.Agent())
	switch {
	case failure != nil && retry.Classify(failure).Unwell:
		e.batches.Add(a.claim.Agent(), batchLimit{most: max(1, a.batch.size/2), learnt: e.Now()})
	case failure == nil && known.most > 0:
		e.batches.Add(a.claim.Agent(), batchLimit{most: min(2*known.most, MaxBatch), learnt: e.Now()})
	}
}

// inBatch reports whether the delivery is in a call with others.
func (a *attempt) inBatch() bool { return a.batch != nil && a.batch.size > 0 }

// describeMembers returns the descriptions (describeDelivery) of all deliveries in the call, in the order of the tool's
// list: the leader's, then the followers'.
func (b *batch) describeMembers(leader *attempt) []any {
	list := []any{leader.describeDelivery()}
	for _, f := range b.members {
		list = append(list, f.describeDelivery())
	}
	return list
}

// releasePayload drops the arguments of the followers, and, if the batch replaced the leader's own call, the arguments
// of that call. b may be nil.
func (b *batch) releasePayload(e *Executor) {
	if b == nil {
		return
	}
	if b.size > 0 {
		e.releaseArguments(&b.single)
	}
	for _, f := range b.members {
		f.call.arguments = nil
	}
}

// sortFollowers puts followers that go into the call into b.members, and followers that failed into b.failed. The
// arguments of the members together have at most the given number of bytes. It returns the other followers, whose
// claims the caller releases. If a follower with an ordering key is not in the call and its delivery has not ended,
// later followers with that key are not in the call either. Followers with ended set are in none of these lists.
func (b *batch) sortFollowers(e *Executor, all []*follower, bytes int) (back []*follower) {
	behind := map[string]bool{} // ordering keys of deliveries that are not in the call
	full := false
	for _, f := range all {
		client := f.claim.Job.OrderKey()
		switch {
		case f.ended:
			behind[client] = behind[client] || !f.final
			continue
		case f.failure != nil && !f.back && !behind[client]:
			f.decided = e.decideFollower(f)
			behind[client] = !f.decided.Status.Final()
			b.failed = append(b.failed, f)
			continue
		case f.back, behind[client], full, f.size > bytes:
			full = full || !f.back && !behind[client]
			behind[client] = true
			back = append(back, f)
			continue
		}
		bytes -= f.size
		b.members = append(b.members, f)
	}
	return slices.Clip(back)
}
