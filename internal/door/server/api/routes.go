package api

import (
	"net/http"
	"reflect"

	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/store/records"
)

// operation is a route with its description for the OpenAPI document.
type operation struct {
	method, path string
	id           string // operationId
	summary      string
	scope        operator.Scope
	query        []parameter
	body         reflect.Type         // nil: no body
	answers      map[int]reflect.Type // successful responses by status
	also         []int                // error statuses in addition to 400, 401, 403, 500 and 503
	failure      reflect.Type         // type of errors that the guard did not answer; nil: ErrorAnswer
	mediaTypes   [2]string            // of the request and the response; empty: application/json

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
	registry = parameter{name: "registry",
		description: "The agent's IdentityRegistry (0x address). Default: the chain's usual one."}
)

// selectionParameters returns the parameters that select deliveries.
func selectionParameters() []parameter {
	return []parameter{
		{name: "agent", description: "CHAIN:AGENT, as in 8453:42."},
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

func answers[T any](status int) map[int]reflect.Type {
	return map[int]reflect.Type{status: reflect.TypeFor[T]()}
}

func (a *API) listOperations() []operation {
	const read, operate = operator.ScopeRead, operator.ScopeOperate
	return []operation{
		{method: "POST", path: "/v1/jobs", id: "enqueue", scope: operator.ScopeEnqueue, stream: a.enqueue,
			summary: "Hand in one job, or JSON Lines: " +
				"then the answer has a line for each line, in order, as they are committed.",
			also:    []int{409, 413, 415, 429},
			answers: map[int]reflect.Type{202: reflect.TypeFor[JobAnswer](), 200: reflect.TypeFor[JobAnswer]()}},
		{method: "POST", path: "/mcp/call", id: "callTool", scope: operator.ScopeDirect, stream: a.callTool,
			summary: "Call an agent's tool at once, as the old backend's bridge did, and return its answer. Nothing " +
				"is stored and nothing tried again.",
			body: reflect.TypeFor[CallRequest](), also: []int{413, 415, 429, 502, 504},
			failure: reflect.TypeFor[CallAnswer](), answers: answers[CallAnswer](200)},
		{method: "GET", path: "/v1/deliveries", id: "listDeliveries", scope: read, answer: a.listDeliveries,
			summary: "List deliveries, newest first.",
			query: append(selectionParameters(), limitParameter,
				parameter{name: "cursor", description: "next of the page before."}),
			answers: answers[operator.DeliveryPage](200)},
		{method: "GET", path: "/v1/groups", id: "listGroups", scope: read, answer: a.listGroups,
			summary: "Group deliveries that failed, wait or are held by reason and sentence: " +
				"their error without ids, numbers and URLs.",
			query: []parameter{statusParameter, endedParameter}, answers: answers[operator.GroupList](200)},
		{method: "GET", path: "/v1/find", id: "find", scope: read, answer: a.findText, also: []int{404},
			summary: "Find a delivery, transaction, client or agent by anything that names it.",
			query: []parameter{{name: "text",
				description: "A delivery's id or key, a transaction's hash, a client's address, an agent " +
					"(CHAIN:AGENT), or the beginning of its server's name."}},
			answers: answers[operator.MatchList](200)},
		{method: "GET", path: "/v1/deliveries/{id...}", id: "showDelivery", scope: read,
			answer: a.showDelivery, also: []int{404},
			summary: "Show one delivery, by id or by key (escape its # as %23), with its job, attempts and answers.",
			answers: answers[operator.Delivery](200)},
		{method: "POST", path: "/v1/deliveries/{id}/replay", id: "replayDelivery", scope: operate, answer: a.replayOne,
			summary: "Deliver again.", body: reflect.TypeFor[MoveOne](), also: []int{404, 409, 413, 415},
			answers: answers[operator.MoveReport](200)},
		{method: "POST", path: "/v1/deliveries/{id}/cancel", id: "cancelDelivery", scope: operate, answer: a.cancelOne,
			summary: "End a delivery that is not final.", body: reflect.TypeFor[MoveOne](),
			also: []int{404, 409, 413, 415}, answers: answers[operator.MoveReport](200)},
		{method: "POST", path: "/v1/deliveries/replay", id: "replayDeliveries", scope: operate, answer: a.replayMany,
			summary: "Deliver those again that a selection chooses, or count them. " +
				"The request lasts as long as it takes.",
			body: reflect.TypeFor[MoveMany](), also: []int{413, 415}, answers: answers[operator.MoveReport](200)},
		{method: "POST", path: "/v1/deliveries/cancel", id: "cancelDeliveries", scope: operate, answer: a.cancelMany,
			summary: "End those that a selection chooses, or count them. The request lasts as long as it takes.",
			body:    reflect.TypeFor[MoveMany](), also: []int{413, 415}, answers: answers[operator.MoveReport](200)},
		{method: "GET", path: "/v1/agents", id: "listAgents", scope: read, answer: a.listAgents,
			summary: "List agents that Herald has delivered to, or meant to.",
			query: []parameter{{name: "state", description: "disabled, pending, connected, needs_auth or failed."},
				{name: "chain", kind: "integer", description: "Only of this chain."},
				{name: "sort", description: "failing: agents with most failed calls in the last 24 hours first. " +
					"slow: those with the longest mean duration of calls. Default: by chain, registry and id."},
				limitParameter,
				{name: "cursor", description: "next of the page before."}},
			answers: answers[operator.AgentPage](200)},
		{method: "GET", path: "/v1/agents/{agent}", id: "showAgent", scope: read, answer: a.showAgent, also: []int{404},
			summary: "Show an agent (CHAIN:AGENT): " +
				"endpoint, state, totals, and its stored tokens without their values.",
			query: []parameter{registry}, answers: answers[operator.Agent](200)},
		{method: "POST", path: "/v1/agents/{agent}/enable", id: "enableAgent", scope: operate,
			answer: a.enableAgent, also: []int{404},
			summary: "Deliver to an agent again, and release deliveries that are held because it was disabled.",
			query:   []parameter{registry}, answers: answers[operator.AgentChange](200)},
		{method: "POST", path: "/v1/agents/{agent}/disable", id: "disableAgent", scope: operate,
			answer: a.disableAgent, also: []int{404},
			summary: "Hold an agent's deliveries from now on.",
			query:   []parameter{registry}, answers: answers[operator.AgentChange](200)},
		{method: "POST", path: "/v1/agents/{agent}/refresh", id: "refreshAgent", scope: operate,
			answer: a.refreshAgent, also: []int{404},
			summary: "Have every worker look an agent's registration up anew.",
			query:   []parameter{registry}, answers: answers[operator.AgentChange](200)},
		{method: "GET", path: "/v1/agents/{agent}/policy", id: "showPolicy", scope: read,
			answer: a.showPolicy, also: []int{404},
			summary: "Show the policies of an agent by level, " +
				"and how many of its newest deliveries each filter skipped.",
			query: []parameter{registry}, answers: answers[operator.AgentChange](200)},
		{method: "PUT", path: "/v1/agents/{agent}/policy", id: "replacePolicy", scope: operate,
			answer: a.replacePolicy, also: []int{413, 415},
			summary: "Replace the operator's policy of an agent.", body: reflect.TypeFor[policy.Policy](),
			query: []parameter{registry}, answers: answers[operator.AgentChange](200)},
		{method: "DELETE", path: "/v1/agents/{agent}/policy", id: "removePolicy", scope: operate,
			answer:  a.removePolicy,
			summary: "Remove the operator's policy of an agent.",
			query:   []parameter{registry}, answers: answers[operator.AgentChange](200)},
		{method: "POST", path: "/v1/agents/{agent}/probe", id: "probeAgent", scope: operate, answer: a.probeAgent,
			summary: "Look at an agent as a delivery would: " +
				"resolve it, connect, list its tools, fit a sample. Nothing is called.",
			query: []parameter{registry}, answers: answers[inspect.Probe](200)},
		{method: "POST", path: "/v1/agents/{agent}/check", id: "checkAgent", scope: operate, answer: a.checkAgent,
			summary: "Check whether an agent can receive deliveries, rule by rule. " +
				"With send, its tools are called with samples.",
			query: []parameter{registry,
				{name: "send", kind: "boolean", description: "Call the tools with samples. Default false."}},
			answers: answers[inspect.CheckReport](200)},
		{method: "GET", path: "/v1/stats", id: "showStats", scope: read, answer: a.showStats,
			summary: "Return totals, queues, the last hour's figures, " +
				"and the states that need a person (needs).", answers: answers[operator.Overview](200)},
		{method: "GET", path: "/v1/chains", id: "listChains", scope: read, answer: a.listChains,
			summary: "List the chains that are read, and how far.", answers: answers[ChainList](200)},
		{method: "GET", path: "/v1/audit", id: "listAudit", scope: read, answer: a.listAudit,
			summary: "List what operators changed, newest first.",
			query: []parameter{limitParameter,
				{name: "cursor", kind: "integer", description: "next of the page before."}},
			answers: answers[operator.AuditPage](200)},
		{method: "GET", path: "/v1/events", id: "streamEvents", scope: read, stream: a.streamEvents, also: []int{429},
			summary: "Follow changes of status as server-sent events: " +
				"event delivery, or gap after more than three days. Resume with Last-Event-ID.",
			query: []parameter{{name: "agent", description: "Only this agent's (CHAIN:AGENT)."},
				{name: "status", repeated: true, description: "Only changes to this status; may be repeated."},
				{name: "lastEventId", description: "As the header Last-Event-ID, for clients that cannot set one."}},
			mediaTypes: [2]string{"", "text/event-stream"}, answers: answers[records.DeliveryEvent](200)},
	}
}
