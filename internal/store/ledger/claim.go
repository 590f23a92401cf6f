package ledger

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/google/uuid"
)

// Claim is the right of one worker to make one attempt at a delivery, until LeaseUntil. It also has the data of the
// delivery and of its agent that the attempt needs. Package store defines the terms.
type Claim struct {
	ID            uuid.UUID
	N             int   // the delivery's dispatch counter, as in the claimed task (Task.N)
	No            int64 // claim number; once a later claim has drawn another one, this claim's writes change nothing
	Attempt       int   // number of the attempt, from 1
	StartedAt     time.Time
	LeaseUntil    time.Time // by Postgres' clock
	Key           string
	Job           job.Job // if Bound is set, made from the event as the chain has it; else as it was sent
	SealedHeaders []byte  // encrypted headers of the job's endpoint; nil: none
	Source        Source  // sender of the job whose action (tool, endpoint, arguments) is used
	Bound         bool    // Job was read from the chain, by the chain follower or by an earlier check (Bind)
	// the event is checked before the call: workers verified its chain when the job was accepted
	Verified bool
	// raised when others add a hint (Hint) or replace the job, so that Bind notices; 0: no hints
	Hints     int
	Corrected []string  // fields in which jobs that were sent differ from the event (Binding.Corrected)
	CreatedAt time.Time // when the delivery was first accepted; a replay or reopening does not change it
	Called    bool      // an earlier attempt called the agent, or may have called it
	Epoch     int64     // the agent's epoch; data about the agent that was cached under a lower epoch is outdated
	Enabled   bool      // false: an operator or Herald disabled the agent (herald.agents.enabled)

	Budget        int // number of this attempt in the delivery's budget of attempts, from 1; a replay starts a new one
	FetchFailures int // attempts since the Budget began that could not fetch the feedback file (Outcome.FetchFailed)
	// Unfinished: an earlier attempt has no outcome in Postgres, because its worker died or could not record the
	// outcome.
	Unfinished bool
	// InDoubt: an attempt without an outcome may have called the agent. Attempts before a replay do not count (they
	// belong to an earlier Budget): by replaying the delivery, the operator accepted a second call.
	InDoubt     bool
	Replay      bool          // an operator has replayed the delivery
	Policy      policy.Policy // the operator's, for the agent
	OwnPolicy   policy.Policy // the agent's own
	Protocol    string        // MCP revision of the agent's last answer; empty: the agent has not answered yet
	Succeeded   bool          // a delivery to the agent succeeded within RecentSuccess
	Traceparent string        // traceparent of the job; empty: the job has none
	Again       bool          // not the first try: the delivery was waiting, or had a task before this one
	// AheadOf is the index (order_seq) of an earlier open delivery of the ordering key that this delivery overtakes.
	// That delivery delays later ones no longer, because its delays_until has passed. Empty: none is overtaken.
	AheadOf string

	// MayCall reports whether the worker may call the agent: the delivery has the turn of its ordering key, or needs no
	// turn. If MayCall is false, the worker only checks the event. Bind then sets MayCall if the delivery gets the
	// turn.
	MayCall bool

	// Kind and RowAgent come from columns of the delivery's row, because the stored job may be unreadable. Bind changes
	// RowAgent. Zero: Agent returns the agent of Job.
	Kind     string
	RowAgent erc8004.Agent

	Waited bool // the delivery was waiting when it was claimed
}

// RecentSuccess is the maximum age of the agent's last success for which Claim.Succeeded is set.
const RecentSuccess = time.Hour

// HasLostKey reports whether a reorg gave the delivery's key to another event (displace.sql). That event has a delivery
// of its own.
func (c *Claim) HasLostKey() bool { return Delivery{ID: c.ID, Key: c.Key}.HasLostKey() }

// HasLostKey is Claim.HasLostKey.
func (d Delivery) HasLostKey() bool { return strings.HasSuffix(d.Key, "~"+d.ID.String()) }

// Agent returns the claim's agent.
func (c *Claim) Agent() erc8004.Agent {
	if c.RowAgent == (erc8004.Agent{}) {
		return AgentOf(c.Job)
	}
	return c.RowAgent
}

// ErrUnreadableJob is returned together with a claim if the delivery's stored job cannot be parsed: a newer version
// wrote the job, or it was edited or deleted by hand. The claim is valid, but its Job is empty. The caller must record
// an outcome.
var ErrUnreadableJob = errors.New("the stored job cannot be read")

// EarlyError is returned by Claim if the task was run before the end of the delivery's wait. asynq must run the task
// again when the wait ends.
type EarlyError struct {
	Left   time.Duration  // rest of the wait
	Reason outcome.Reason // reason of the wait
	Text   string         // stored error text of the wait
}

// Error implements error.
func (e *EarlyError) Error() string {
	return fmt.Sprintf("it waits (%s) for another %s: %s", e.Reason, e.Left, e.Text)
}

// MaxMembers limits the deliveries that one ClaimMembers claims, because the agent's row is locked while they are
// claimed.
const MaxMembers = 49

// Member is the claim of a delivery that is sent in the same call as another delivery of its agent, the leader. A
// Member has no task in Redis. If the delivery must wait after the call, it waits without a task.
type Member struct {
	*Claim
	Err error // ErrUnreadableJob if the stored job cannot be parsed, else nil
}
