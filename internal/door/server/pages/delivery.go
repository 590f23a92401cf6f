package pages

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// deliveryPage is the page of one delivery.
type deliveryPage struct {
	operator.Delivery
	AgentName string
	Index     string // of the feedback
	Moments   []moment
	Job       []jobField
	File      fileView
	Relations []operator.Relation
	Next      string // action that NextStep names: replay, cancel, enable, probe, or empty
	MayReplay bool
	MayCancel bool
	Moving    bool   // the delivery progresses, so the page refreshes by itself
	Shown     string // the delivery's state as the page shows it
}

// moment is an entry of the timeline: the acceptance, an attempt, the next attempt or the end.
type moment struct {
	At      time.Time
	Later   string // time since the moment before
	What    string // empty for an attempt
	Attempt *attemptView
}

// attemptView is an attempt with its steps.
type attemptView struct {
	ledger.Attempt
	Steps []stepView
}

// stepView is one step of an attempt: done, failed, running, or ahead.
type stepView struct {
	Name, State string
	Took        string // empty if unknown
	X, Width    string // its part of the longest attempt; empty if unknown
}

// fileView is the feedback file as it was verified, and the last call with its answer.
type fileView struct{ Content, Sent, Answered json.RawMessage }

// jobField is one field of a job.
type jobField struct {
	Name, Value string
	Kind        string // tx, block or address: links to the explorer
}

// attemptSteps are the steps of the executor, in order (docs/design/delivery.md).
var attemptSteps = []string{"claim", "check", "resolve", "fetch", "connect", "compose", "call", "record"}

// listSteps returns the steps of an attempt. longest is the duration of the longest attempt's steps in µs.
func listSteps(a ledger.Attempt, longest int64) []stepView {
	steps := make([]stepView, len(attemptSteps))
	state := "done"
	var before int64
	for i, name := range attemptSteps {
		here := state
		if name == a.Stage && state == "done" {
			state = "ahead"
			switch a.Outcome {
			case string(outcome.Delivered), string(outcome.Skipped):
				here, state = "done", "done" // only recording the outcome follows
			case "":
				here = "running"
			default:
				here = "failed"
			}
		}
		steps[i] = stepView{Name: name, State: here}
		if k := i - 1; k >= 0 && k < len(a.StepMicros) { // the claim is not timed
			took := int64(a.StepMicros[k])
			steps[i].Took = showMillis(float64(took) / 1000)
			steps[i].X = formatPercent(float64(before), float64(longest))
			steps[i].Width = formatPercent(float64(took), float64(longest))
			before += took
		}
	}
	return steps
}

// listMoments returns the timeline of a delivery over all attempts.
func listMoments(d operator.Delivery) (all []moment) {
	longest := int64(1)
	for _, a := range d.History {
		sum := int64(0)
		for _, us := range a.StepMicros {
			sum += int64(us)
		}
		longest = max(longest, sum)
	}
	all = append(all, moment{At: d.CreatedAt, What: "accepted"})
	for _, a := range d.History {
		all = append(all, moment{At: a.StartedAt, Attempt: &attemptView{a, listSteps(a, longest)}})
	}
	if d.FinishedAt != nil {
		all = append(all, moment{At: *d.FinishedAt, What: string(d.Status)})
	}
	if d.NextAttemptAt != nil {
		all = append(all, moment{At: *d.NextAttemptAt, What: "next attempt"})
	}
	for i := 1; i < len(all); i++ {
		if gap := all[i].At.Sub(all[i-1].At); gap > 0 {
			all[i].Later = showSeconds(gap.Seconds()) + " later"
		}
	}
	return all
}

// viewFile returns the last call of a delivery. The file's content is shown apart from the other arguments.
func viewFile(d operator.Delivery) (f fileView) {
	for _, a := range slices.Backward(d.History) {
		if len(a.Arguments) > 0 {
			f.Sent, f.Answered = a.Arguments, a.Response
			break
		}
	}
	var sent map[string]json.RawMessage
	if json.Unmarshal(f.Sent, &sent) != nil {
		return f
	}
	for name, content := range sent {
		plain := strings.ToLower(strings.ReplaceAll(name, "_", ""))
		if plain == "filecontent" && string(content) != "null" {
			f.Content = content
			sent[name] = json.RawMessage(`"(as verified)"`)
			f.Sent, _ = json.Marshal(sent) // cannot fail: it was decoded from JSON
		}
	}
	return f
}

// nextActions are the commands in a next step that a button can run, and the button's action.
var nextActions = [][2]string{{"worker delivery replay", "replay"}, {"worker delivery cancel", "cancel"},
	{"worker agent enable", "enable"},
	{"worker agent probe", "probe"}, {"worker agent resolve", "probe"}}

// findAction returns the action of the first command in a next step.
func findAction(step string) (action string) {
	first := len(step)
	for _, a := range nextActions {
		if i := strings.Index(step, a[0]); i >= 0 && i < first {
			first, action = i, a[1]
		}
	}
	return action
}

func (p *Pages) showDelivery(r *request) (answer, error) {
	d, err := p.Operator.ShowDelivery(r.Context(), r.PathValue("id"))
	if err != nil {
		return answer{}, err
	}
	page := deliveryPage{Delivery: d, Moments: listMoments(d), Job: listJob(d.Job), File: viewFile(d),
		Next: findAction(d.NextStep), Moving: !d.Status.Final() && d.Status != outcome.Held,
		MayReplay: d.Status != outcome.Queued && d.Status != outcome.Running && len(d.Job) > 0,
		MayCancel: !d.Status.Final(),
		Shown:     fmt.Sprintf("%s-%s-%d", d.Status, d.Reason, len(d.History))}
	// A refresh replaces only the upper part of the page. If the state changed, the buttons and the timeline are stale
	// too, so htmx loads the whole page.
	if shown := r.URL.Query().Get("shown"); shown != "" && shown != page.Shown {
		r.w.Header().Set("HX-Refresh", "true")
	}
	if page.Relations, err = p.Operator.ListRelations(r.Context(), d.Delivery); err != nil {
		return answer{}, err
	}
	for _, f := range page.Job {
		if f.Name == "feedbackIndex" {
			page.Index = f.Value
		}
	}
	names, err := p.Operator.AgentNames(r.Context(), []erc8004.Agent{agentOf(d.Delivery)})
	page.AgentName = names[agentOf(d.Delivery)]
	return answer{page: "delivery", title: "Delivery " + d.ID.String()[:8], content: page}, err
}

// maxFields bounds the fields of a job on a page. The job's JSON below has all.
const maxFields = 80

// firstFields are the fields of a job that a page shows first, in this order.
var firstFields = []string{"type", "chainId", "agentId", "clientAddress", "feedbackIndex", "responder",
	"validatorAddress", "value", "valueDecimals", "score", "response", "tag1", "tag2", "tag", "endpoint",
	"feedbackURI", "feedbackHash", "responseURI", "responseHash", "requestHash", "reason", "identityRegistry",
	"reputationRegistry", "validationRegistry", "transactionHash", "logIndex", "blockNumber", "blockHash"}

// listJob returns the fields of a job. Those of an object have its name before theirs, as in action.toolName.
func listJob(raw json.RawMessage) (fields []jobField) {
	kinds := map[string]string{"transactionHash": "tx", "blockNumber": "block", "clientAddress": "address",
		"responder": "address", "validatorAddress": "address", "reputationRegistry": "address",
		"identityRegistry": "address", "validationRegistry": "address"}
	rank := func(name string) int {
		if i := slices.Index(firstFields, name); i >= 0 {
			return i
		}
		return len(firstFields)
	}
	var add func(prefix string, raw json.RawMessage)
	add = func(prefix string, raw json.RawMessage) {
		var j map[string]json.RawMessage
		if json.Unmarshal(raw, &j) != nil {
			return
		}
		byRank := func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) }
		for _, name := range slices.SortedFunc(maps.Keys(j), byRank) {
			value := strings.TrimSpace(string(j[name]))
			var s string
			switch {
			case len(fields) >= maxFields, value == "null", value == `""`, value == "{}":
			case strings.HasPrefix(value, "{") && prefix == "":
				add(name+".", j[name])
			case json.Unmarshal(j[name], &s) == nil:
				fields = append(fields, jobField{prefix + name, s, kinds[prefix+name]})
			default:
				fields = append(fields, jobField{prefix + name, value, kinds[prefix+name]})
			}
		}
	}
	add("", raw)
	return fields
}

// agentOf returns the agent of a delivery.
func agentOf(d ledger.Delivery) erc8004.Agent {
	return erc8004.Agent{ChainID: d.ChainID, Registry: d.IdentityRegistry, ID: d.AgentID}
}

// deliveryTable is a list of deliveries with the names of their agents.
type deliveryTable struct {
	Rows  []ledger.Delivery
	names map[erc8004.Agent]string
}

// Name returns the name of the agent of a delivery, or "".
func (t deliveryTable) Name(d ledger.Delivery) string { return t.names[agentOf(d)] }

func (p *Pages) makeTable(ctx context.Context, rows []ledger.Delivery) (t deliveryTable, err error) {
	agents := make([]erc8004.Agent, len(rows))
	for i, d := range rows {
		agents[i] = agentOf(d)
	}
	t.Rows = rows
	t.names, err = p.Operator.AgentNames(ctx, agents)
	return t, err
}

func (p *Pages) moveOne(move operator.Mover) func(*request) (answer, error) {
	return func(r *request) (answer, error) {
		id := r.PathValue("id")
		report, err := move(r.Context(), operator.MoveRequest{IDs: []string{id}, Force: r.PostFormValue("force") != "",
			Actor: r.visitor.Name})
		if report != nil && len(report.Left) > 0 {
			return answer{page: "problem", title: "Nothing was changed", status: http.StatusConflict,
				content: problem{"The delivery was left as it is: " + report.Left[0].Why + "."}}, nil
		}
		return answer{location: "/deliveries/" + url.PathEscape(id)}, err
	}
}
