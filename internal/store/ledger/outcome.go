package ledger

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/storable"
)

// Outcome is the result of one attempt: the delivery's next status, and data about the call. Package store
// defines the terms. Record makes the strings valid UTF-8 without NUL, and cuts long ones. While Postgres is
// unavailable, Redis stores outcomes as JSON. So fields may be added, but their JSON names must not change.
type Outcome struct {
	Status outcome.Status `json:"status"`
	Reason outcome.Reason `json:"reason,omitempty"` // empty for Delivered
	Delay  time.Duration  `json:"delay,omitempty"`  // for Waiting: time until the next attempt (JSON: ns)
	// Task, for Waiting: the delivery has a task in Redis during the wait, which asynq runs when the wait is over. If
	// Task is false, the delivery waits in Postgres only, and the reconciler ends the wait.
	Task bool `json:"task,omitempty"`
	// Anew, with Task: the delivery gets a new task for the wait, because asynq has not ended the claimed task yet.
	Anew bool `json:"anew,omitempty"`
	// Free: the attempt does not count and is not stored. The next attempt gets its number. Free is ignored if Called
	// is set.
	Free   bool   `json:"free,omitempty"`
	Called bool   `json:"called,omitempty"` // at least a part of the call was sent to the agent
	Stage  string `json:"stage,omitempty"`  // last step of the attempt, for example "fetch"
	Error  string `json:"error,omitempty"`  // a sentence for operators, without secrets

	ToolName         string `json:"toolName,omitempty"`
	Endpoint         string `json:"endpoint,omitempty"`
	FileVerification string `json:"fileVerification,omitempty"`
	FileSource       string `json:"fileSource,omitempty"`
	// FileDisagrees has the fields of the feedback file that contradict the event. It is stored only if
	// FileVerification is set.
	FileDisagrees []string        `json:"fileDisagrees,omitempty"`
	Arguments     json.RawMessage `json:"arguments,omitempty"` // of the tool call, as sent
	Response      json.RawMessage `json:"response,omitempty"`  // to the tool call, as received
	Result        json.RawMessage `json:"result,omitempty"`    // the part of the response for the delivery's row
	Protocol      string          `json:"protocol,omitempty"`
	// StepMicros has the durations of the steps check, resolve, fetch, connect, compose and call in µs, up to the last
	// step that began.
	StepMicros []int32 `json:"stepMicros,omitempty"`
	// CallTook, with Called, is the duration of the last call (JSON: ns). It includes connecting to the agent, if that
	// was needed, but not the renewal of an access token. 0: unknown.
	CallTook time.Duration `json:"callTook,omitempty"`

	AgentOK    bool            `json:"agentOk,omitempty"`    // the agent accepted the call
	AgentError string          `json:"agentError,omitempty"` // the error, if the agent caused it; else empty
	ServerInfo json.RawMessage `json:"serverInfo,omitempty"` // from the agent's initialize result
	// Tools is the agent's list of tools (ToolList) for the agent's row. Nil: the stored list stays. A worker sets
	// Tools when it reads a list that it has not seen before, even if another worker has stored the same list.
	Tools json.RawMessage `json:"tools,omitempty"`

	Registration *Registration `json:"registration,omitempty"` // what the attempt resolved; nil: the stored one stays

	// EndpointOfJob: the job named the endpoint that was called. Such an outcome shows nothing about the agent's own
	// endpoint, so Record does not change the agent's row.
	EndpointOfJob bool `json:"endpointOfJob,omitempty"`

	// Elsewhere, for Held with agent_disabled: the agent is disabled by the servers file, the operator's list of MCP
	// servers, and not by the agent's row. Record then does not release the delivery, although the row is enabled.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// FetchFailed: the feedback file could not be fetched. Claim.FetchFailures counts these.
	FetchFailed bool `json:"fetchFailed,omitempty"`
	// SkipDispatch: Record does not dispatch the agent's next deliveries, because they would have to wait for the same
	// cause, for example a rate limit. The reconciler dispatches them later.
	SkipDispatch bool `json:"keepLine,omitempty"`
	// Moved: the call may have failed because the agent's endpoint moved. Record raises the agent's epoch, so that
	// workers resolve the agent again. After that, another outcome with Moved does not raise it again before a success,
	// or before another cause has raised it.
	Moved bool `json:"moved,omitempty"`

	// Undecided: the check found the event in no confirmed block, or a hint (type Hint) arrived during the check. If a
	// hint arrived after the claim, Record queues the delivery again at once, because the hint may name the right
	// position. It does the same with a retraction whose event got a new delivery after the claim.
	Undecided bool `json:"undecided,omitempty"`
	// Rerouted, for Waiting: Bind gave the delivery another agent or ordering key, for which it must be dispatched
	// anew. Record puts the delivery into that agent's backlog at once.
	Rerouted bool `json:"rerouted,omitempty"`
	// NoTurn, for Waiting: the event was found, but the delivery did not get the turn of its ordering key. Record
	// returns the delivery to the backlog, and a later claim gets the turn.
	NoTurn bool `json:"noTurn,omitempty"`
	// Gone, for Cancelled: the chain no longer has the event, and the delivery must not get another one.
	Gone *Gone `json:"gone,omitempty"`
	// Refuted has the ranks of the hints at whose positions the check did not find the event.
	Refuted []int `json:"refuted,omitempty"`
}

// Gone describes an event that is no longer on the chain, although its agent was or may have been called with it, or
// although an operator replayed its delivery, which has lost its key (Claim.HasLostKey). If the event is a feedback
// with which the agent was or may have been called, Record inserts a retraction: a delivery that informs the agent.
type Gone struct {
	Next *job.Job `json:"next,omitempty"` // the event that has the key now and needs a delivery; nil: none
}

// MarshalJSON encodes o. First it makes the JSON values from outside storable, as Record does (storable.JSON).
// Otherwise, a value that is not valid JSON would make the encoding fail.
func (o Outcome) MarshalJSON() ([]byte, error) {
	type plain Outcome
	for _, side := range []*json.RawMessage{&o.Arguments, &o.Response, &o.Result, &o.ServerInfo, &o.Tools} {
		*side = storable.JSON(*side, storable.MaxSide)
	}
	return json.Marshal(plain(o))
}

// SpooledOutcome is the outcome of an earlier attempt. Redis stored it, because Postgres was unavailable when the
// attempt ended.
type SpooledOutcome struct {
	Attempt   int       `json:"attempt"`   // number of that attempt
	StartedAt time.Time `json:"startedAt"` // when that attempt began; Attempt and StartedAt identify its row
	At        time.Time `json:"at"`        // when the outcome became known
	Epoch     int64     `json:"epoch"`     // Claim.Epoch of that attempt
	Outcome   Outcome   `json:"outcome"`   // the caller reduces Delay by the time since At before it calls Adopt
}

// EarlierClaim returns c, the claim that loaded p, with the agent's epoch of p's attempt. An operator may have stored a
// credential between the two claims, which raised the epoch.
func (p SpooledOutcome) EarlierClaim(c *Claim) *Claim {
	earlier := *c
	earlier.Epoch = p.Epoch
	return &earlier
}

// Recorded is the result of Record: the delivery's new state, and tasks that the caller puts into Redis or removes
// there.
type Recorded struct {
	// Task is the task with which the delivery waits: a new one for Outcome.Anew, else the claimed one. Nil: the
	// delivery has none (Outcome.Task).
	Task *Task
	// Next has the tasks of the agent's next deliveries, which the same transaction dispatched; the caller puts them
	// into Redis. It also has the former tasks of held deliveries that the transaction released (Task.Ended); the
	// caller removes them from Redis.
	Next []Task

	Rechecked     bool          // the delivery was queued again at once (Undecided, Rerouted, NoTurn)
	NextAttemptAt time.Time     // for Waiting: time of the next attempt, by Postgres' clock
	Age           time.Duration // time since the delivery was accepted
}

// CheckStatus returns an error unless o.Status is final, Waiting or Held, the statuses with which an attempt can end.
func (o Outcome) CheckStatus() error {
	if !o.Status.Final() && o.Status != outcome.Waiting && o.Status != outcome.Held {
		return fmt.Errorf("%q is not a status that an attempt can end with", o.Status)
	}
	return nil
}

// NeedsRecheck reports whether the outcome is Undecided, Rerouted or NoTurn. For these, record.sql decides whether it
// returns the delivery to the backlog at once.
func (o Outcome) NeedsRecheck() bool { return o.Undecided || o.Rerouted || o.NoTurn }

// MayBeMended reports whether the outcome holds the delivery for something that an operator may have mended after the
// claim: a missing credential, or a disabled agent (unless Elsewhere). That released only deliveries that were held
// then. So the transaction that records the outcome also releases the agent's deliveries that are held for its reason.
func (o Outcome) MayBeMended() bool {
	return o.Status == outcome.Held &&
		(o.Reason == outcome.AuthRequired || o.Reason == outcome.AgentDisabled && !o.Elsewhere)
}

// KeepSide returns the arguments or the response of a call as Record stores them: as storable JSON of at most 16 KiB.
func KeepSide(raw json.RawMessage) json.RawMessage { return storable.JSON(raw, storable.MaxSide) }
