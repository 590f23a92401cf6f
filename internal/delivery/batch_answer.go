package delivery

import (
	"context"
	"encoding/json"

	"github.com/agentherald/herald/internal/base/strictjson"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// itemResult is the result of one delivery in a batch tool's answer: its status, the agent's error text (problem), and
// the whole result as JSON (raw).
type itemResult struct {
	status, problem string
	raw             json.RawMessage
}

// The values of itemResult.status.
const (
	itemAccepted = "accepted" // delivered
	itemRejected = "rejected" // final, tool_error
	itemRetry    = "retry"    // server_error: another attempt follows
)

// maxResultDepth bounds the nesting of a batch tool's answer. Herald reads three levels; agents may add data to their
// results.
const maxResultDepth = 32

// readItemResults returns the results in a batch tool's answer by delivery id. It omits a delivery that occurs twice or
// has an unknown status. It returns no results if the answer has another form, or if no memory is free to decode it.
// The outcome of each omitted delivery is unknown.
func (e *Executor) readItemResults(ctx context.Context, answer mcpcall.Answer) map[string]itemResult {
	release, err := e.Decoding.Acquire(ctx, len(answer.Raw))
	if err != nil {
		return nil
	}
	defer release()
	return parseItemResults(answer.Object())
}

// ItemStatuses returns the status of each delivery in a batch tool's answer by delivery id. It omits a delivery that
// occurs twice or has an unknown status.
func ItemStatuses(answer mcpcall.Answer) map[string]string {
	found := map[string]string{}
	for id, r := range parseItemResults(answer.Object()) {
		found[id] = r.status
	}
	return found
}

// parseItemResults parses {"results": [{"deliveryId", "status", "error"}, …]} and returns the results by delivery id.
// It omits a delivery that occurs twice or has an unknown status, and returns nil if raw is no JSON object.
func parseItemResults(raw json.RawMessage) map[string]itemResult {
	root, fault := strictjson.Parse(raw, strictjson.Options{MaxDepth: maxResultDepth})
	if fault != nil {
		return nil
	}
	object, ok := root.Object()
	if !ok {
		return nil
	}
	list, _ := memberOf[[]*strictjson.Value](object, "results")
	found, seen := map[string]itemResult{}, map[string]bool{}
	for _, v := range list {
		item, ok := v.Object()
		if !ok {
			continue
		}
		id, _ := memberOf[string](item, "deliveryId")
		if seen[id] {
			delete(found, id)
			continue
		}
		seen[id] = true
		r := itemResult{}
		r.status, _ = memberOf[string](item, "status")
		r.problem, _ = memberOf[string](item, "error")
		switch r.status {
		case itemAccepted, itemRejected, itemRetry:
			r.raw = store.KeepSide(v.Encode())
			found[id] = r
		}
	}
	return found
}

// memberOf returns the value of the field called name in the JSON object o. ok is false if o has no such field or the
// value is not a T.
func memberOf[T any](o *strictjson.Object, name string) (value T, ok bool) {
	if m := o.Get(name); m != nil {
		value, ok = m.Data.(T)
	}
	return value, ok
}

// splitOne returns the answer and the failure (nil: delivered) of the delivery with this id in a batch call. whole and
// failure are the answer and the error of that call. If failure is not nil, each delivery fails with it. Otherwise the
// status of the delivery's entry in results (readItemResults) decides: with the status rejected the delivery fails with
// tool_error, with retry it fails with server_error, and with accepted it is delivered. If results has no entry for the
// delivery, it fails with outcome_unknown.
func splitOne(whole toolAnswer, failure error, results map[string]itemResult, id uuid.UUID) (toolAnswer, error) {
	own := whole
	if failure != nil {
		own.Raw = store.KeepSide(whole.Raw)
		return own, failure
	}
	r, ok := results[id.String()]
	if !ok {
		own.Raw, own.detail = store.KeepSide(whole.Raw), "the answer does not name it"
		return own, outcome.Fail(outcome.Unknown,
			"the agent answered a call of several deliveries and did not say, or said twice, what became of this one")
	}
	own.Raw, own.detail = r.raw, "answered: "+r.status
	own.Text = text.Excerpt(r.problem, 300)
	switch r.status {
	case itemRejected:
		return own, outcome.Fail(outcome.ToolError, "the agent's tool rejected it: "+own.Text)
	case itemRetry:
		return own, outcome.Fail(outcome.ServerError, "the agent's tool asks for it again later: "+own.Text)
	}
	return own, nil
}
