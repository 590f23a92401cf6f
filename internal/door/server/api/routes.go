package api

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/records"
)

// operation is a route with its description for the OpenAPI document.
type operation struct {
	method, path string
	id           string // operationId
	summary      string
	scope        operator.Scope // empty: read for GET, else operate
	query        []parameter
	body         reflect.Type         // nil: no body
	answers      map[int]reflect.Type // successful responses by status
	also         []int                // error statuses in addition to 400, 401, 403, 500 and 503
	failure      reflect.Type         // type of errors that the guard did not answer; nil: ErrorAnswer
	mediaType    string               // of the response; empty: application/json

	answer func(*request) (any, error)                                    // one of the two is set
	stream func(w http.ResponseWriter, r *http.Request, v server.Visitor) // or that
}

// parameter describes a query parameter.
type parameter struct {
	name, description string
	kind              string // integer, or empty for string
	repeated          bool
}

var (
	limitParameter  = parameter{name: "limit", kind: "integer", description: "Rows of a page, 1 to 1000. Default 50."}
	statusParameter = parameter{name: "status", repeated: true,
		description: "Any of these statuses; may be repeated, or have commas."}
	endedParameter = parameter{name: "endedSince",
		description: "Ended since then without being delivered: RFC 3339, or how long ago, as in 24h."}
	registryParameter = parameter{name: "registry",
		description: "The agent's IdentityRegistry (0x address). Default: the chain's usual one."}
)

// selectionParameters returns the parameters that select deliveries.
func selectionParameters() []parameter {
	return []parameter{
		{name: "agent", description: "CHAIN:AGENT, as in 8453:42."},
		{name: "registry", description: "Of these, only the agent of this IdentityRegistry (0x address)."},
		{name: "client", description: "0x address of the feedback's author."},
		{name: "transaction", description: "0x hash of the event's transaction."},
		{name: "key", description: "The delivery's key."},
		statusParameter,
		{name: "reason", description: "One of the reasons."},
		{name: "sentence", description: "The sentence of a group."},
		{name: "kind", description: "NewFeedback, FeedbackRevoked, ResponseAppended or ValidationResponse."},
		{name: "since", description: "Accepted since then: RFC 3339, or how long ago, as in 24h."},
		{name: "until", description: "Accepted before then, likewise."},
		endedParameter,
		{name: "reorged", kind: "boolean",
			description: "What a reorg took back: deliveries that it ended, and retractions, which inform agents."},
	}
}

// answering returns op with a handler, and the type of its answer.
func answering[T any](handle func(*request) (T, error), op operation) operation {
	answer := reflect.TypeFor[T]()
	if answer.Kind() == reflect.Pointer {
		answer = answer.Elem()
	}
	op.answer = func(r *request) (any, error) { return handle(r) }
	op.answers = map[int]reflect.Type{http.StatusOK: answer}
	return op
}

func (a *API) listOperations() []operation {
	operations := []operation{
		{method: "POST", path: "/v1/jobs", id: "enqueue", scope: operator.ScopeEnqueue, stream: a.enqueue,
			summary: "Hand in one job, or JSON Lines: " +
				"then the answer has a line for each line, in order, as they are committed.",
			also:    []int{409, 413, 415, 429},
			answers: map[int]reflect.Type{202: reflect.TypeFor[JobAnswer](), 200: reflect.TypeFor[JobAnswer]()}},
		{method: "POST", path: "/mcp/call", id: "callTool", scope: operator.ScopeDirect, stream: a.callTool,
			summary: "Call an agent's tool at once, as the old backend's bridge did, and return its answer. Nothing " +
				"is stored and nothing tried again.",
			body: reflect.TypeFor[CallRequest](), also: []int{413, 415, 429, 502, 504},
			failure: reflect.TypeFor[CallAnswer](),
			answers: map[int]reflect.Type{200: reflect.TypeFor[CallAnswer]()}},
		{method: "GET", path: "/v1/events", id: "streamEvents", stream: a.streamEvents, also: []int{429},
			summary: "Follow changes of status as server-sent events: " +
				"event delivery, or gap after more than three days. Resume with Last-Event-ID.",
			query: []parameter{{name: "agent", description: "Only this agent's (CHAIN:AGENT)."},
				{name: "status", repeated: true, description: "Only changes to this status; may be repeated."},
				{name: "lastEventId", description: "As the header Last-Event-ID, for clients that cannot set one."}},
			mediaType: "text/event-stream",
			answers:   map[int]reflect.Type{200: reflect.TypeFor[records.DeliveryEvent]()}},
		answering(a.listDeliveries, operation{method: "GET", path: "/v1/deliveries", id: "listDeliveries",
			summary: "List deliveries, newest first.",
			query: append(selectionParameters(), limitParameter,
				parameter{name: "cursor", description: "next of the page before."})}),
		answering(a.listGroups, operation{method: "GET", path: "/v1/groups", id: "listGroups",
			summary: "Group deliveries that failed, wait or are held by reason and sentence: " +
				"their error without ids, numbers and URLs.",
			query: []parameter{statusParameter, endedParameter}}),
		answering(a.findText, operation{method: "GET", path: "/v1/find", id: "find", also: []int{404},
			summary: "Find a delivery, transaction, client or agent by anything that names it.",
			query: []parameter{{name: "text",
				description: "A delivery's id, its first 8 or more digits, or its key, a transaction's hash, a " +
					"client's address, an agent (CHAIN:AGENT), or the beginning of an agent's name: that of its " +
					"registration or, without one, of its server."}}}),
		answering(a.showDelivery, operation{method: "GET", path: "/v1/deliveries/{id...}", id: "showDelivery",
			summary: "Show one delivery, by id, its first 8 or more digits or key (escape its # as %23), " +
				"with its job, attempts and answers.",
			also: []int{404}}),
		answering(a.moveOne(a.Operator.Replay), operation{method: "POST", path: "/v1/deliveries/{id}/replay",
			id: "replayDelivery", summary: "Deliver again.", body: reflect.TypeFor[MoveOne](),
			also: []int{404, 409, 413, 415}}),
		answering(a.moveOne(a.Operator.Cancel), operation{method: "POST", path: "/v1/deliveries/{id}/cancel",
			id: "cancelDelivery", summary: "End a delivery that is not final.", body: reflect.TypeFor[MoveOne](),
			also: []int{404, 409, 413, 415}}),
		answering(a.moveMany(a.Operator.Replay), operation{method: "POST", path: "/v1/deliveries/replay",
			id: "replayDeliveries", body: reflect.TypeFor[MoveMany](), also: []int{413, 415},
			summary: "Deliver those again that a selection chooses, or count them. " +
				"The request lasts as long as it takes."}),
		answering(a.moveMany(a.Operator.Cancel), operation{method: "POST", path: "/v1/deliveries/cancel",
			id: "cancelDeliveries", body: reflect.TypeFor[MoveMany](), also: []int{413, 415},
			summary: "End those that a selection chooses, or count them. The request lasts as long as it takes."}),
		answering(a.listAgents, operation{method: "GET", path: "/v1/agents", id: "listAgents",
			summary: "List agents that Herald has delivered to, or meant to.",
			query: []parameter{{name: "state", description: "disabled, pending, connected, needs_auth or failed."},
				{name: "chain", kind: "integer", description: "Only of this chain."},
				{name: "sort", description: "failing: agents with most failed calls in the last 24 hours first. " +
					"slow: those with the longest mean duration of calls. Default: by chain, registry and id."},
				limitParameter,
				{name: "cursor", description: "next of the page before."}}}),
		answering(a.showAgent, operation{method: "GET", path: "/v1/agents/{agent}", id: "showAgent",
			summary: "Show an agent (CHAIN:AGENT): " +
				"endpoint, state, totals, and its stored tokens without their values.", also: []int{404}}),
		answering(a.enableAgent(true), operation{method: "POST", path: "/v1/agents/{agent}/enable", id: "enableAgent",
			summary: "Deliver to an agent again, and release deliveries that are held because it was disabled.",
			also:    []int{404, 409}}),
		answering(a.enableAgent(false), operation{method: "POST", path: "/v1/agents/{agent}/disable",
			id: "disableAgent", summary: "Hold an agent's deliveries from now on.", also: []int{404}}),
		answering(a.refreshAgent, operation{method: "POST", path: "/v1/agents/{agent}/refresh", id: "refreshAgent",
			summary: "Have every worker look an agent's registration up anew.", also: []int{404}}),
		answering(a.showPolicy, operation{method: "GET", path: "/v1/agents/{agent}/policy", id: "showPolicy",
			summary: "Show the policies of an agent by level, " +
				"and how many of its newest deliveries each filter skipped.", also: []int{404}}),
		answering(a.replacePolicy, operation{method: "PUT", path: "/v1/agents/{agent}/policy", id: "replacePolicy",
			summary: "Replace the operator's policy of an agent.", body: reflect.TypeFor[policy.Policy](),
			also: []int{413, 415}}),
		answering(a.removePolicy, operation{method: "DELETE", path: "/v1/agents/{agent}/policy", id: "removePolicy",
			summary: "Remove the operator's policy of an agent."}),
		answering(a.probeAgent, operation{method: "POST", path: "/v1/agents/{agent}/probe", id: "probeAgent",
			summary: "Look at an agent as a delivery would: " +
				"resolve it, connect, list its tools, fit a sample. Nothing is called."}),
		answering(a.checkAgent, operation{method: "POST", path: "/v1/agents/{agent}/check", id: "checkAgent",
			summary: "Check whether an agent can receive deliveries, rule by rule. " +
				"With send, its tools are called with samples.",
			query: []parameter{
				{name: "send", kind: "boolean", description: "Call the tools with samples. Default false."}}}),
		answering(a.showStats, operation{method: "GET", path: "/v1/stats", id: "showStats",
			summary: "Return totals, queues, the last hour's figures, the states that need a person (needs), " +
				"and the services and chains that the answering worker cannot use (problems)."}),
		answering(a.listChains, operation{method: "GET", path: "/v1/chains", id: "listChains",
			summary: "List the chains that are read, and how far."}),
		answering(a.listAudit, operation{method: "GET", path: "/v1/audit", id: "listAudit",
			summary: "List what operators changed, newest first.",
			query: []parameter{limitParameter,
				{name: "cursor", kind: "integer", description: "next of the page before."}}}),
	}
	for i := range operations {
		op := &operations[i]
		if strings.Contains(op.path, "/{agent}") {
			op.query = append([]parameter{registryParameter}, op.query...)
		}
		if op.scope == "" {
			op.scope = operator.ScopeOperate
			if op.method == "GET" {
				op.scope = operator.ScopeRead
			}
		}
	}
	return operations
}
