package tools

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/strictjson"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/store/ledger"
)

// deliveriesName is the name of the only argument of the tool Batch, the list of deliveries.
const deliveriesName = "deliveries"

// FitItem fits the arguments of job j to the tool Batch. f is the job's file. FitItem returns the item of the tool's
// list. It returns an error if the tool's schema accepts no list of objects, or does not accept these arguments. It
// waits for memory as FitCall does.
func FitItem(ctx context.Context, decoding *decode.Budget, j job.Job, f job.File, deliveryID string,
	tool mcpcall.Tool) (Fitted, error) {
	release, err := decoding.Acquire(ctx, len(tool.InputSchema)+len(f.Content))
	if err != nil {
		return Fitted{}, err
	}
	defer release()
	whole, err := mcpcall.Fit(tool, List(j.Arguments(f, deliveryID)))
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
	return encodeArguments(item)
}

// List returns the arguments of the tool Batch with these items.
func List(items ...any) map[string]any { return map[string]any{deliveriesName: items} }

// MaxItems returns how many deliveries one call of the tool Batch may contain: most, or the lower maxItems of the
// tool's schema.
func MaxItems(tool mcpcall.Tool, most int) int {
	var schema struct {
		Properties struct {
			Deliveries struct {
				MaxItems *float64 `json:"maxItems"`
			} `json:"deliveries"`
		} `json:"properties"`
	}
	if json.Unmarshal(tool.InputSchema, &schema) != nil || schema.Properties.Deliveries.MaxItems == nil {
		return most
	}
	return int(max(0, min(*schema.Properties.Deliveries.MaxItems, float64(most))))
}

// Item is the result of one delivery in the answer of the tool Batch.
type Item struct {
	Status  string
	Problem string          // the agent's error text
	Raw     json.RawMessage // the whole result
}

// The values of Item.Status.
const (
	ItemAccepted = "accepted" // delivered
	ItemRejected = "rejected" // final, tool_error
	ItemRetry    = "retry"    // server_error: another attempt follows
)

// maxResultDepth bounds the nesting of an answer of the tool Batch. Herald reads three levels; agents may add data to
// their results.
const maxResultDepth = 32

// Items returns the results in an answer of the tool Batch, {"results": [{"deliveryId", "status", "error"}, …]}, by
// delivery id. It omits a delivery that occurs twice or has an unknown status. It reads the text if the structured
// content has no results: FastMCP for Python wraps the text of a tool as {"result": "…"} there. It returns none if
// neither contains a result.
func Items(answer mcpcall.Answer) (found map[string]Item) {
	for _, raw := range answer.Objects() {
		if found = parseItems(raw); len(found) > 0 {
			break
		}
	}
	return found
}

func parseItems(raw json.RawMessage) map[string]Item {
	root, fault := strictjson.Parse(raw, strictjson.Options{MaxDepth: maxResultDepth})
	if fault != nil {
		return nil
	}
	object, ok := root.Object()
	if !ok {
		return nil
	}
	list, _ := memberOf[[]*strictjson.Value](object, "results")
	found, seen := map[string]Item{}, map[string]bool{}
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
		r := Item{}
		r.Status, _ = memberOf[string](item, "status")
		r.Problem, _ = memberOf[string](item, "error")
		switch r.Status {
		case ItemAccepted, ItemRejected, ItemRetry:
			r.Raw = ledger.KeepSide(v.Encode())
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
