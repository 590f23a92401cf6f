package delivery

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

const (
	// MaxBatch is the largest number of deliveries in one call, including the leader.
	MaxBatch = ledger.MaxMembers + 1
	// maxBatchBytes bounds the arguments of a call with several deliveries, in bytes of JSON.
	maxBatchBytes = 4 << 20
	// maxBatchAgents is the number of agents whose batchLimit the process remembers (Executor.batches). After the
	// process forgot an agent's batchLimit, the agent's next batch may have the configured size again.
	maxBatchAgents = 4096
)

// batch is one call with several deliveries of an agent. The attempt of the leader makes the call. The members are the
// other deliveries, claimed for this call (ledger.Member). Each delivery has its own row, attempt and outcome.
type batch struct {
	leader  uuid.UUID    // delivery id
	members []*member    // the deliveries in the call, without the leader
	failed  []*member    // deliveries that failed before the call; each failure is recorded
	single  preparedCall // a call with the leader alone, which is made if the agent refuses the batch
	size    int          // number of deliveries in the call, including the leader; 0: the call has only the leader
}

// batchLimit is the number of deliveries that an agent accepts in one call, learnt from a call of this process that
// failed. When limitTTL has passed since then, batches of the configured size are tried again.
type batchLimit struct {
	most   int // at least 1
	learnt time.Time
}

// limitTTL is how long a batchLimit is used.
const limitTTL = 10 * time.Minute

// gatherBatch replaces the prepared call of the leader a by a batch, if the agent offers a batch tool and has other
// deliveries that could be called now. It claims these and prepares them. If some do not fit into the call, it releases
// their claims, and their attempts do not count. If no other delivery fits, the leader's call does not change.
func (e *Executor) gatherBatch(ctx context.Context, a *attempt) {
	most := e.mayBatch(a)
	if most < 2 {
		return
	}
	tool, most := e.findBatchTool(ctx, a, most)
	if most < 2 {
		return
	}
	own, err := e.fitItem(ctx, a, tool)
	if err != nil {
		e.Logger.Debug("an agent's batch tool does not accept all that its other tool accepts",
			"delivery", a.claim.ID, "error", err)
		return
	}
	claimed := e.claimMembers(ctx, a, most-1)
	if len(claimed) == 0 {
		return
	}

	b := &batch{leader: a.claim.ID, single: a.call}
	a.batch = b
	e.prepareMembers(ctx, a, tool, claimed)
	members, back := b.sortMembers(e, claimed, maxBatchBytes-len(own.Sent))
	if err := e.composeBatch(a, tool, own, members); err != nil {
		e.Logger.Debug("a batch is not sent", "delivery", a.claim.ID, "error", err)
		back = append(back, members...)
	}
	e.giveBack(ctx, back)
}

// mayBatch returns how many deliveries the call of the leader a may contain, including the leader: batchSize, or 1,
// which means no batch. It returns 1 if Executor.Members is nil (no batches), if the agent is a newcomer, or if the
// delivery is a replay. It also returns 1 if the job is not for feedback, names another tool than tools.Feedback, or
// has its own headers or template. The batch tool's schema may allow fewer (findBatchTool).
func (e *Executor) mayBatch(a *attempt) int {
	action := a.claim.Job.Action
	switch {
	case a.claim.Job.Kind != job.KindNewFeedback, action.ToolName != tools.Feedback, len(action.PayloadTemplate) > 0,
		a.endpoint.ownHeaders, len(a.claim.SealedHeaders) > 0, a.claim.Replay:
		return 1
	case e.Members == nil, a.pass.Newcomer(): // newcomers get one delivery per call
		return 1
	}
	return e.batchSize(a)
}

// batchSize returns how many deliveries one call to the agent may contain: the lowest of the setting BatchSize, the
// batch size of the agent's policy, and the agent's batchLimit.
func (e *Executor) batchSize(a *attempt) int {
	most := e.BatchSize
	if a.policy.BatchSize > 0 {
		most = min(most, a.policy.BatchSize)
	}
	if known, ok := e.batches.Get(a.claim.Agent()); ok && e.Now().Sub(known.learnt) < limitTTL {
		most = min(most, known.most)
	}
	return most
}

// findBatchTool returns the agent's batch tool, and how many deliveries one call may contain. The number is the lower
// of most and the maxItems of the tool's schema. It is 0 if the agent has no batch tool, or if its tool list cannot be
// read or contains no schema of the tool.
func (e *Executor) findBatchTool(ctx context.Context, a *attempt, most int) (mcpcall.Tool, int) {
	named := a.claim.Job
	named.Action.ToolName = tools.Batch
	names, err := tools.Names(named, e.ToolAliases, a.server)
	if err != nil || a.call.listing == nil {
		return mcpcall.Tool{}, 0
	}
	if _, ok := mcpcall.Find(a.call.listing.Tools, names[0], names[1:]); !ok {
		return mcpcall.Tool{}, 0
	}
	listing, err := e.listTools(ctx, a.auth.Endpoint, cachedTools)
	if err != nil {
		return mcpcall.Tool{}, 0
	}
	tool, ok := mcpcall.Find(listing.Tools, names[0], names[1:])
	if !ok || len(tool.InputSchema) == 0 {
		return tool, 0
	}
	return tool, tools.MaxItems(tool, most)
}

// fitItem returns the arguments of the delivery a as one item of the batch tool's list (tools.FitItem).
func (e *Executor) fitItem(ctx context.Context, a *attempt, tool mcpcall.Tool) (tools.Fitted, error) {
	return tools.FitItem(ctx, e.Decoding, a.claim.Job, a.file.File, a.claim.ID.String(), tool)
}

// composeBatch replaces the leader's call by a call of the batch tool with the leader and the members, and sets the
// members of a.batch. If there are no members, it does nothing. own contains the leader's arguments as one item of the
// tool's list (fitItem). If the members' leases are too short for the call, or no memory is free for its arguments, it
// returns an error, and neither the leader's call nor a.batch changes.
func (e *Executor) composeBatch(a *attempt, tool mcpcall.Tool, own tools.Fitted, members []*member) error {
	b := a.batch
	if len(members) == 0 {
		return nil
	}
	timeout, _ := e.callTimeout(a)
	if left := members[0].lease.timeLeft(e.Now()); left < timeout+e.LeaseMargin {
		return fmt.Errorf("of its leases %s are left", left)
	}
	items, size := []any{own.Arguments}, len(own.Sent)
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %s", tool.Name, own.Sent)
	for _, f := range members {
		items, size = append(items, f.call.arguments), size+f.size
	}
	release, err := e.reserveArguments(a, size)
	if err != nil {
		return err
	}
	a.call = preparedCall{tool: tool.Name, arguments: tools.List(items...), sanitized: own.Cleaned,
		recorded: ledger.KeepSide(own.Sent), digest: [sha256.Size]byte(sum.Sum(nil)), release: release,
		listing: b.single.listing}
	b.size = len(items)
	for _, f := range members {
		f.batch = b
		f.answer.called, f.failure = true, errUnanswered // the outcome in case of a panic before splitAnswer
		e.beginStage(f.attempt, "call")
	}
	b.members = members // last: after a panic, recordMembers takes members without a failure for delivered
	return nil
}

var errUnanswered = outcome.Bar(outcome.Unknown, "a fault of Herald's own in a call of several deliveries: "+
	"its log has the stack")

// dissolveBatch handles an agent's refusal of a batch: the agent does not know the batch tool, or it refused the
// request (refusesRequest). Each delivery may still be accepted in a call of its own. So dissolveBatch restores the
// leader's own call, releases the claims of the members, and returns true: the caller must repeat the call. The agent's
// batchLimit becomes 1 if the agent does not know the batch tool, and otherwise half of the batch's size.
//
// failure is the error of the batch call. If it is nil or another error, dissolveBatch changes nothing and returns
// false.
func (e *Executor) dissolveBatch(ctx context.Context, a *attempt, failure error) bool {
	if !a.inBatch() || failure == nil {
		return false
	}
	switch {
	case classify.NotATool(failure):
		e.limitBatches(a, 1)
	case refusesRequest(failure):
		e.limitBatches(a, a.batch.size/2)
	default:
		return false
	}
	e.Logger.Info("an agent refuses a call of several deliveries, which are delivered one by one",
		"delivery", a.claim.ID,
		"batch", a.batch.size, "error", failure)
	e.releaseArguments(&a.call)
	a.call, a.answer = a.batch.single, toolAnswer{} // the agent did not execute the call
	e.giveBack(ctx, a.batch.members)
	a.batch.members, a.batch.size = nil, 0
	return true
}

// refusesRequest reports whether failure means that the agent refused the request itself, so that it executed no tool.
// This is the case if the request was too large. It is also the case for the reason bad_response, if the answer was a
// JSON-RPC error or an HTTP status 4xx.
func refusesRequest(failure error) bool {
	var call *mcpcall.CallError
	var large *mcpcall.RequestTooLargeError
	return errors.As(failure, &large) ||
		errors.As(failure, &call) && (call.Status/100 == 4 || call.Code != 0) &&
			classify.Error(failure).Reason == outcome.BadResponse
}

// splitAnswer distributes the result of a batch call to its deliveries. It sets the answer and the failure of each
// member and the answer of the leader a, and returns the failure of the leader (nil: delivered). failure is the error
// of the whole call (nil: the agent answered). If a has no batch, splitAnswer returns failure.
//
// If the tool answered with an error, each delivery fails with server_error, and the agent's batchLimit becomes 1. If
// the endpoint did not accept the call or did not finish it (outcome.Verdict.Unwell), the batchLimit becomes half of
// the batch's size. If the agent received nothing, the claims of the members are released, their attempts do not count,
// and splitAnswer returns failure.
func (e *Executor) splitAnswer(ctx context.Context, a *attempt, failure error) error {
	if !a.inBatch() {
		return failure
	}
	b := a.batch
	e.Metrics.batchSize.Observe(float64(b.size))
	if a.answer.IsError { // many SDKs answer an exception in a tool with an error, so all deliveries are retried
		e.limitBatches(a, 1)
		failure = outcome.Fail(outcome.ServerError, "the agent's tool answered a call of several deliveries with an "+
			"error, which does not say of which; they come one by one now: "+text.Excerpt(a.answer.Text, 200))
	} else if failure != nil && classify.Error(failure).Unwell { // so many deliveries may exceed the call's timeout
		e.limitBatches(a, a.batch.size/2)
	}
	if failure != nil && !a.answer.called { // the agent received nothing
		e.giveBack(ctx, b.members)
		b.members = nil
		return failure
	}

	var results map[string]tools.Item
	if failure == nil {
		results = e.readItems(ctx, a.answer.Answer)
	}
	whole := a.answer
	for _, f := range b.members {
		f.answer, f.failure = splitOne(whole, failure, results, f.claim.ID)
		f.failure = e.endStages(f.attempt, f.failure, nil)
	}
	a.answer, failure = splitOne(whole, failure, results, a.claim.ID)
	return failure
}

// readItems returns the results of the deliveries in the answer to a batch call. The outcome of each delivery that they
// omit is unknown. It returns none if no memory is free to decode the answer.
func (e *Executor) readItems(ctx context.Context, answer mcpcall.Answer) map[string]tools.Item {
	release, err := e.Decoding.Acquire(ctx, len(answer.Raw))
	if err != nil {
		return nil
	}
	defer release()
	return tools.Items(answer)
}

// splitOne returns the answer and the failure (nil: delivered) of the delivery with this id in a batch call. whole and
// failure are the answer and the error of that call. If failure is not nil, each delivery fails with it. Otherwise the
// status of the delivery's entry in results (readItems) decides: with the status rejected the delivery fails with
// tool_error, with retry it fails with server_error, and with accepted it is delivered. If results has no entry for the
// delivery, it fails with outcome_unknown.
func splitOne(whole toolAnswer, failure error, results map[string]tools.Item, id uuid.UUID) (toolAnswer, error) {
	own := whole
	if failure != nil {
		own.Raw = ledger.KeepSide(whole.Raw)
		return own, failure
	}
	r, ok := results[id.String()]
	if !ok {
		own.Raw, own.detail = ledger.KeepSide(whole.Raw), "the answer does not name it"
		return own, outcome.Fail(outcome.Unknown,
			"the agent answered a call of several deliveries and did not say, or said twice, what became of this one")
	}
	own.Raw, own.detail = r.Raw, "answered: "+r.Status
	own.Text = text.Excerpt(r.Problem, 300)
	switch r.Status {
	case tools.ItemRejected:
		return own, outcome.Fail(outcome.ToolError, "the agent's tool rejected it: "+own.Text)
	case tools.ItemRetry:
		return own, outcome.Fail(outcome.ServerError, "the agent's tool asks for it again later: "+own.Text)
	}
	return own, nil
}

// limitBatches sets the batchLimit of the agent of a.
func (e *Executor) limitBatches(a *attempt, most int) {
	e.batches.Add(a.claim.Agent(), batchLimit{most: most, learnt: e.Now()})
}

// inBatch reports whether the attempt's call contains more than one delivery.
func (a *attempt) inBatch() bool { return a.batch != nil && a.batch.size > 0 }

// releasePayload sets the members' arguments to nil. If the batch replaced the leader's own call, it also sets the
// arguments of that call to nil and ends the reservation of their memory (releaseArguments). b may be nil.
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

// sortMembers decides which of the prepared deliveries go into the call. It appends failed deliveries to b.failed.
// It returns others as members, as long as their arguments together have at most room bytes. It also returns the rest
// (back), whose claims the caller releases.
//
// Deliveries of one ordering key stay in order: if one is not in the call and is not final, the later ones are not in
// the call either. They are in back, even if they failed.
func (b *batch) sortMembers(e *Executor, all []*member, room int) (members, back []*member) {
	behind := map[string]bool{} // ordering keys of deliveries that are neither in the call nor final
	full := false
	for _, f := range all {
		client := f.claim.Job.OrderKey()
		switch {
		case f.failure != nil && !f.back && !behind[client]:
			f.decided = e.decideMember(f)
			behind[client] = !f.decided.Status.Final()
			b.failed = append(b.failed, f)
			continue
		case f.back, behind[client], full, f.size > room:
			full = full || !f.back && !behind[client]
			behind[client] = true
			back = append(back, f)
			continue
		}
		room -= f.size
		members = append(members, f)
	}
	return members, slices.Clip(back)
}
