package pages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
)

// pageRows is the number of rows on a page of a list.
const pageRows = 50

// deliveriesPage is one page of deliveries, with the search that selected them.
type deliveriesPage struct {
	Search     operator.Selection
	Query      template.URL // the search as a query, for links
	Deliveries []store.Delivery
	NextURL    string
	First      bool // the first page, which refreshes by itself
	Searching  bool
	Statuses   []store.Status
	Reasons    []outcome.Reason
	Kinds      []string
}

// readSelection reads a search from a query or a form.
func readSelection(q url.Values) operator.Selection {
	get := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	return operator.Selection{Agent: get("agent"), Client: get("client"), Transaction: get("transaction"), Key: get("key"),
		Status: get("status"), Reason: get("reason"), Kind: get("kind"), Since: get("since"), Until: get("until")}
}

// selectionQuery returns a search as an escaped query for links.
func selectionQuery(s operator.Selection) template.URL {
	return template.URL(encodePairs([]string{"agent", s.Agent, "client", s.Client, "transaction", s.Transaction, "key", s.Key,
		"status", s.Status, "reason", s.Reason, "kind", s.Kind, "since", s.Since, "until", s.Until}))
}

func (p *Pages) listDeliveries(r *request) (answer, error) {
	q := r.URL.Query()
	if id := strings.TrimSpace(q.Get("id")); id != "" {
		return answer{location: "/deliveries/" + url.PathEscape(id)}, nil
	}
	s := readSelection(q)
	cursor, _ := strconv.ParseInt(q.Get("cursor"), 10, 64)
	list, err := p.Operator.ListDeliveries(r.Context(), s, max(cursor, 0), pageRows)
	if err != nil {
		return answer{}, err
	}
	page := deliveriesPage{Search: s, Query: selectionQuery(s), Deliveries: list.Deliveries, First: cursor <= 0,
		Searching: s != operator.Selection{}, Statuses: operator.AllStatuses(), Reasons: outcome.Reasons()}
	for _, k := range operator.AllKinds() {
		page.Kinds = append(page.Kinds, string(k))
	}
	if list.Next != "" {
		page.NextURL = "/deliveries?" + strings.TrimPrefix(string(page.Query)+"&cursor="+list.Next, "&")
	}
	return answer{page: "deliveries", title: "Deliveries", content: page}, nil
}

// deliveryPage is the page of one delivery.
type deliveryPage struct {
	operator.Delivery
	Event     []eventField
	Attempts  []attemptView
	MayReplay bool
	MayCancel bool
	Moving    bool // the delivery progresses, so the page refreshes by itself
}

// eventField is one field of the event, as the job spells it.
type eventField struct {
	Name, Value string
	Kind        string // tx, block or address: links to the explorer
}

// attemptView is an attempt with its steps.
type attemptView struct {
	store.Attempt
	Steps []stepView
}

// stepView is one step of an attempt: done, failed, running, or ahead.
type stepView struct {
	Name, State string
	Took        string // empty if unknown
}

// attemptSteps are the steps of the executor, in order (docs/design/delivery.md).
var attemptSteps = []string{"claim", "check", "resolve", "fetch", "connect", "compose", "call", "record"}

func listSteps(a store.Attempt) []stepView {
	steps := make([]stepView, len(attemptSteps))
	state := "done"
	for i, name := range attemptSteps {
		here := state
		if name == a.Stage && state == "done" {
			state = "ahead"
			switch a.Outcome {
			case string(store.Delivered), string(store.Skipped):
				here, state = "done", "done" // only recording the outcome follows
			case "":
				here = "running"
			default:
				here = "failed"
			}
		}
		steps[i] = stepView{Name: name, State: here}
		if k := i - 1; k >= 0 && k < len(a.StepMicros) { // the claim is not timed
			steps[i].Took = showMillis(float64(a.StepMicros[k]) / 1000)
		}
	}
	return steps
}

func (p *Pages) showDelivery(r *request) (answer, error) {
	d, err := p.Operator.ShowDelivery(r.Context(), r.PathValue("id"))
	if err != nil {
		return answer{}, err
	}
	page := deliveryPage{Delivery: d, Event: listEvent(d.Job), Moving: !d.Status.Final() && d.Status != store.Held,
		MayReplay: d.Status != store.Queued && d.Status != store.Running, MayCancel: !d.Status.Final()}
	for _, a := range d.History {
		page.Attempts = append(page.Attempts, attemptView{a, listSteps(a)})
	}
	return answer{page: "delivery", title: "Delivery", content: page}, nil
}

// listEvent returns the event's fields in a job, in the order in which a page shows them.
func listEvent(raw json.RawMessage) (fields []eventField) {
	var j map[string]any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if d.Decode(&j) != nil {
		return nil
	}
	kinds := map[string]string{"transactionHash": "tx", "blockNumber": "block", "clientAddress": "address", "responder": "address",
		"validatorAddress": "address", "reputationRegistry": "address", "identityRegistry": "address", "validationRegistry": "address"}
	for _, name := range []string{"clientAddress", "feedbackIndex", "responder", "validatorAddress", "value", "valueDecimals", "score", "response",
		"tag1", "tag2", "tag", "endpoint", "feedbackURI", "feedbackHash", "responseURI", "responseHash", "requestHash", "reason",
		"identityRegistry", "reputationRegistry", "validationRegistry", "transactionHash", "logIndex", "blockNumber", "blockHash"} {
		if v, ok := j[name]; ok && v != nil && v != "" {
			fields = append(fields, eventField{name, fmt.Sprint(v), kinds[name]})
		}
	}
	return fields
}

func (p *Pages) replayOne(r *request) (answer, error) { return p.moveOne(r, p.Operator.Replay) }
func (p *Pages) cancelOne(r *request) (answer, error) { return p.moveOne(r, p.Operator.Cancel) }

// moveFunc is Operator.Replay or Operator.Cancel.
type moveFunc func(context.Context, operator.MoveRequest) (*operator.MoveReport, error)

func (p *Pages) moveOne(r *request, move moveFunc) (answer, error) {
	id := r.PathValue("id")
	report, err := move(r.Context(), operator.MoveRequest{IDs: []string{id}, Force: r.PostFormValue("force") != "",
		Actor: r.visitor.Name})
	if report != nil && len(report.Left) > 0 {
		return answer{page: "problem", title: "Nothing was changed", status: http.StatusConflict,
			content: problem{"The delivery was left as it is: " + report.Left[0].Why + "."}}, nil
	}
	return answer{location: "/deliveries/" + url.PathEscape(id)}, err
}

// movePage counts the deliveries that a search would change, and asks for confirmation.
type movePage struct {
	Action string // replay or cancel
	Search operator.Selection
	Query  template.URL
	Report *operator.MoveReport
}

// chooseMove returns the function for an action.
func (p *Pages) chooseMove(action string) (moveFunc, error) {
	switch action {
	case "replay":
		return p.Operator.Replay, nil
	case "cancel":
		return p.Operator.Cancel, nil
	}
	return nil, operator.NewMisuse("choose replay or cancel")
}

func (p *Pages) countMove(r *request) (answer, error) {
	q := r.URL.Query()
	page := movePage{Action: q.Get("action"), Search: readSelection(q)}
	page.Query = selectionQuery(page.Search)
	move, err := p.chooseMove(page.Action)
	if err != nil {
		return answer{}, err
	}
	page.Report, err = move(r.Context(), operator.MoveRequest{Selection: page.Search, DryRun: true, Actor: r.visitor.Name})
	return answer{page: "move", title: strings.ToUpper(page.Action[:1]) + page.Action[1:] + " deliveries", content: page}, err
}

// moveMany changes the selected deliveries. The request lasts until all are changed; the audit row has the result.
func (p *Pages) moveMany(r *request) (answer, error) {
	move, err := p.chooseMove(r.PostFormValue("action"))
	if err != nil {
		return answer{}, err
	}
	rate, err := strconv.Atoi(r.PostFormValue("rate"))
	if err != nil {
		return answer{}, operator.NewMisuse("the rate is not a whole number")
	}
	_ = http.NewResponseController(r.w).SetWriteDeadline(time.Time{})
	report, err := move(r.Context(), operator.MoveRequest{Selection: readSelection(r.PostForm), Rate: rate, Yes: true, Actor: r.visitor.Name})
	var left *operator.LeftError
	if err != nil && !errors.As(err, &left) {
		return answer{}, err
	}
	if report.Audit == 0 {
		return answer{location: "/deliveries?" + string(selectionQuery(readSelection(r.PostForm)))}, nil
	}
	return answer{location: fmt.Sprintf("/audit#audit-%d", report.Audit)}, nil
}
