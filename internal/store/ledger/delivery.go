package ledger

import (
	"encoding/json"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/google/uuid"
)

// Delivery is a delivery as operators see it. Lists leave Job, Result and History empty; the method Delivery sets them.
type Delivery struct {
	ID               uuid.UUID `json:"id"`
	Key              string    `json:"key"`
	Seq              int64     `json:"seq"`
	Kind             string    `json:"kind"`
	ChainID          uint64    `json:"chainId"`
	IdentityRegistry string    `json:"identityRegistry"`
	AgentID          string    `json:"agentId"`
	Client           string    `json:"client,omitempty"` // address of the author; of a validation, the validator
	// rating of a feedback, or response of a validation: "99.77"
	Value            string         `json:"value,omitempty"`
	Tag1             string         `json:"tag1,omitempty"` // at most 256 characters; Job has the whole tag
	Tag2             string         `json:"tag2,omitempty"`
	Status           outcome.Status `json:"status"`
	Reason           outcome.Reason `json:"reason,omitempty"`
	Error            string         `json:"error,omitempty"`
	Attempts         int            `json:"attempts"`
	Dispatch         int            `json:"dispatch"`
	NextAttemptAt    *time.Time     `json:"nextAttemptAt,omitempty"`
	ToolName         string         `json:"toolName,omitempty"`
	Endpoint         string         `json:"endpoint,omitempty"`
	FileVerification string         `json:"fileVerification,omitempty"`
	FileSource       string         `json:"fileSource,omitempty"`
	FileDisagrees    []string       `json:"fileDisagrees,omitempty"` // fields of the file that contradict the event
	// Verified: workers verified events of the delivery's chain when the job was accepted, so they check this event
	// before the call.
	Verified   bool       `json:"verified"`
	Corrected  []string   `json:"corrected,omitempty"` // fields in which sent jobs differ from the event
	CreatedAt  time.Time  `json:"createdAt"`
	UpdatedAt  time.Time  `json:"updatedAt"`
	FinishedAt *time.Time `json:"finishedAt,omitempty"`
	// TraceID is the id of the trace (W3C Trace Context) that contains the delivery's spans. The agent gets it with the
	// call.
	TraceID string          `json:"traceId"`
	Job     json.RawMessage `json:"job,omitempty"`    // set by Delivery only
	Result  json.RawMessage `json:"result,omitempty"` // set by Delivery only
	History []Attempt       `json:"history,omitempty"`
}

// Attempt is one attempt to deliver, as operators see it. Its fields are in the order in which the method Delivery
// selects them.
type Attempt struct {
	Number     int             `json:"number"`
	StartedAt  time.Time       `json:"startedAt"`
	DurationMs *int            `json:"durationMs,omitempty"`
	Stage      string          `json:"stage"`
	Outcome    string          `json:"outcome,omitempty"` // empty: the attempt runs, or its outcome is unknown
	Reason     outcome.Reason  `json:"reason,omitempty"`
	Error      string          `json:"error,omitempty"`
	Arguments  json.RawMessage `json:"arguments,omitempty"`
	Response   json.RawMessage `json:"response,omitempty"`
	Protocol   string          `json:"protocol,omitempty"`
	// StepMicros has the durations of the steps check, resolve, fetch, connect, compose and call in µs, up to the last
	// step that began.
	StepMicros []int32 `json:"stepMicros,omitempty"`
}
