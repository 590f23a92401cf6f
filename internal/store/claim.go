package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// clockTolerance is how early a scheduled task may be claimed, because Redis may release it a little early by Postgres'
// clock.
const clockTolerance = time.Second

// Claim is the right of one worker to make one attempt at a delivery, until LeaseUntil.
type Claim struct {
	ID            uuid.UUID
	N             int   // the task's dispatch counter
	No            int64 // the claim number, the fencing token
	Attempt       int   // 1-based
	StartedAt     time.Time
	LeaseUntil    time.Time // by Postgres' clock
	Key           string
	Job           job.Job // if Bound is set, the event as it was read from the chain
	SealedHeaders []byte
	Source        Source   // of the job's action
	Bound         bool     // Job was read from the chain, by a follower or by an earlier check (Bind)
	Verified      bool     // it was accepted while workers verified the chain's events
	Hints         int      // 0: no job besides Job was sent for the key; else Hints returns them
	Corrected     []string // fields of the jobs that the event contradicts, as Bind stored them
	CreatedAt     time.Time
	Called        bool  // an earlier attempt called the agent, or may have
	Epoch         int64 // of the agent; data cached under a lower epoch is stale
	Enabled       bool  // the agent is enabled

	Budget        int // number of this attempt in the present budget, from 1; a replay begins a new budget
	FetchFailures int // outcomes with FetchFailed in the present budget
	// Unfinished: an earlier attempt has no outcome, because its worker died or could not record it.
	Unfinished bool
	// InDoubt: an attempt of the present budget has no outcome. By replaying, the operator has decided about older
	// ones.
	InDoubt     bool
	Replay      bool // an operator replayed it
	Policy      Policy
	Preferences Preferences // of the agent, as far as they are in force
	Protocol    string      // the MCP revision of the agent's last answer; empty: none yet
	Succeeded   bool        // a delivery to the agent succeeded within RecentSuccess
	Traceparent string      // of the job; empty: none
	Again       bool        // the delivery waited before, or this is not its first task
	// AheadOf is the order_seq of an earlier open delivery of the ordering key that no longer blocks this one (its
	// holds_until has passed), so that this one overtakes it; empty: none.
	AheadOf string

	// From the row's own columns, because the job may be unreadable.
	kind  string
	agent Agent
	week  string // partition that has the attempt's row; empty: unknown
}

// RecentSuccess is how long an agent's last success counts for Claim.Succeeded.
const RecentSuccess = time.Hour

// Policy is an operator's decision about an agent.
type Policy struct {
	// OnUnknown decides what happens to a delivery if it is unknown whether the agent received the call:
	// OnUnknownResend (default) or OnUnknownHold.
	OnUnknown string `json:"onUnknown,omitempty"`
	// Order is OrderStrict (default) or OrderOff: whether deliveries of one ordering key are sent in order. It has an
	// effect only if Config.StrictOrder is set.
	Order string `json:"order,omitempty"`
	// Preferences is PreferencesFollow (default) or PreferencesIgnore.
	Preferences string `json:"preferences,omitempty"`
}

// The values of Policy.Order.
const (
	OrderStrict = "strict"
	OrderOff    = "off"
)

// The values of Policy.OnUnknown.
const (
	OnUnknownResend = "resend" // send it again with the same deliveryId
	OnUnknownHold   = "hold"   // hold it (held_unknown) until an operator replays or cancels it
)

// The values of Policy.Preferences.
const (
	PreferencesFollow = "follow" // the agent's preferences reduce the number of calls
	PreferencesIgnore = "ignore" // they are stored and shown, without an effect
)

// parsePolicy parses a stored policy. It ignores unknown fields and values, which an operator or a newer version may
// have written.
func parsePolicy(raw []byte) (p Policy) {
	var fields map[string]json.RawMessage
	if string(raw) == "{}" || json.Unmarshal(raw, &fields) != nil {
		return Policy{}
	}
	read := func(field string, allowed ...string) (value string) {
		if json.Unmarshal(fields[field], &value) != nil || !slices.Contains(allowed, value) {
			return ""
		}
		return value
	}
	return Policy{OnUnknown: read("onUnknown", OnUnknownResend, OnUnknownHold), Order: read("order", OrderStrict, OrderOff),
		Preferences: read("preferences", PreferencesFollow, PreferencesIgnore)}
}

// Merge returns p with the non-empty fields of o.
func (p Policy) Merge(o Policy) Policy {
	return Policy{OnUnknown: cmp.Or(o.OnUnknown, p.OnUnknown), Order: cmp.Or(o.Order, p.Order),
		Preferences: cmp.Or(o.Preferences, p.Preferences)}
}

// checkValues returns an error for an invalid value.
func (p Policy) checkValues() error {
	switch p.OnUnknown {
	case "", OnUnknownResend, OnUnknownHold:
	default:
		return fmt.Errorf("onUnknown is %s or %s, not %q", OnUnknownResend, OnUnknownHold, p.OnUnknown)
	}
	switch p.Order {
	case "", OrderStrict, OrderOff:
	default:
		return fmt.Errorf("order is %s or %s, not %q", OrderStrict, OrderOff, p.Order)
	}
	switch p.Preferences {
	case "", PreferencesFollow, PreferencesIgnore:
	default:
		return fmt.Errorf("preferences is %s or %s, not %q", PreferencesFollow, PreferencesIgnore, p.Preferences)
	}
	return nil
}

// Agent returns the claim's agent.
func (c *Claim) Agent() Agent {
	if c.agent == (Agent{}) {
		return jobAgent(c.Job)
	}
	return c.agent
}

// ErrUnreadableJob means that a delivery's stored job cannot be parsed: a newer version wrote it, it was edited by
// hand, or it was deleted. The claim returned with it is valid, with an empty Job, so that the caller can record the
// outcome.
var ErrUnreadableJob = errors.New("the stored job cannot be read")

// EarlyError is returned by Claim when the task is the newest one but the delivery is not yet due.
type EarlyError struct {
	Left   time.Duration // until the delivery is due
	Reason reason.Reason // of the wait
	Text   string        // error text of the wait
}

// Error implements error.
func (e *EarlyError) Error() string {
	return fmt.Sprintf("it waits (%s) for another %s: %s", e.Reason, e.Left, e.Text)
}

// Claim claims delivery id for task n. It returns nil and no error if it refuses the claim, because the delivery is
// claimed or the task is old; it returns an *EarlyError if the delivery is not due. The lease counts from Postgres'
// now().
//
// Concurrent first claims share a statement (coalescer). If ctx ends while the statement runs, Claim still returns the
// claim, and the caller records its outcome as usual.
func (s *Store) Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (c *Claim, err error) {
	if n < 1 || n > math.MaxInt32 {
		return nil, nil // not a task of this store
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "claim delivery %s", id)
	if n == 1 {
		return s.claims.do(ctx, claimRequest{id, lease})
	}
	return s.claimAgain(ctx, id, n, lease)
}

// claimRow is a row of claim.sql.
type claimRow struct {
	Claim
	job, policy []byte
	preferences []byte
	base        int
}

// fields returns the destinations of claim.sql's columns, in their order.
func (r *claimRow) fields() []any {
	return []any{&r.No, &r.Attempt, &r.StartedAt, &r.LeaseUntil, &r.job, &r.SealedHeaders, &r.Key, &r.kind,
		&r.CreatedAt, &r.Called,
		&r.agent.ChainID, &r.agent.Registry, &r.agent.ID, &r.Epoch, &r.Enabled,
		&r.base, &r.FetchFailures, &r.Replay, &r.policy, &r.Protocol, &r.Succeeded, &r.week, &r.Hints, &r.Bound, &r.Verified,
		&r.Source.Name, &r.Source.Trust, &r.Corrected, &r.Traceparent,
		&r.AheadOf, &r.preferences}
}

// claim returns the claim of the row for task n. unfinished is the number of the delivery's last attempt without an
// outcome.
func (r *claimRow) claim(n, unfinished int) (*Claim, error) {
	c := r.Claim
	c.N, c.Budget, c.Policy, c.week = n, max(c.Attempt-r.base, 1), parsePolicy(r.policy), parseWeek(c.week)
	c.Preferences = parsePreferences(r.preferences).InForce(c.Policy, c.StartedAt)
	c.Unfinished = unfinished > 0
	mayBeCalled := c.Bound || !c.Verified // Bind precedes the call
	c.InDoubt = mayBeCalled && unfinished > r.base
	c.Called = c.Called || mayBeCalled && c.Unfinished
	if err := json.Unmarshal(r.job, &c.Job); err != nil {
		c.Job = job.Job{}
		return &c, fmt.Errorf("%w: %w", ErrUnreadableJob, err)
	}
	return &c, nil
}

// weeks matches the partitions of attempts (see ensure_attempt_partitions in migrations).
var weeks = regexp.MustCompile(`^(?:herald\.)?(attempts_(?:default|[0-9]{8}))$`)

// parseWeek returns the qualified name of a partition as Postgres names it, or "" if it is not one of attempts.
func parseWeek(table string) string {
	if m := weeks.FindStringSubmatch(table); m != nil {
		return "herald." + m[1]
	}
	return ""
}

// claimAgain claims a waiting delivery, or one whose task is not its first, in one round trip and one commit. A first
// claim is already counted as dispatched and has no earlier attempt. claimAgain must also find a free slot among the
// agent's eight, and look up the last attempt without an outcome.
func (s *Store) claimAgain(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*Claim, error) {
	b := &pgx.Batch{}
	b.Queue(statement("lock_agent_of"), id)
	if s.strict {
		b.Queue(statement("step_behind"), id, n, clockTolerance)
	}
	b.Queue(statement("yield"), id, n, clockTolerance, MaxDispatchedPerAgent)
	var unfinished int
	var waited bool
	b.Queue(statement("unfinished"), id).QueryRow(func(row pgx.Row) error { return row.Scan(&unfinished, &waited) })
	// The claim's error is kept separately, because a refusal must not look like a failed batch.
	var row claimRow
	row.ID = id
	var err error
	b.Queue(statement("claim"), id, n, lease, clockTolerance, RecentSuccess).QueryRow(func(r pgx.Row) error {
		err = r.Scan(row.fields()...)
		return noRows(err, nil)
	})
	if failed := s.pool.SendBatch(ctx, b).Close(); failed != nil {
		return nil, failed
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, s.explainRefusal(ctx, id, n)
	}
	if err != nil {
		return nil, err
	}
	row.Again = n > 1 || waited
	return row.claim(n, unfinished)
}

// explainRefusal returns an *EarlyError if the delivery waits with task n, else nil.
func (s *Store) explainRefusal(ctx context.Context, id uuid.UUID, n int) error {
	var early EarlyError
	err := s.pool.QueryRow(ctx, `SELECT next_attempt_at - now(), coalesce(reason, ''), coalesce(error, '')
		   FROM herald.deliveries
		  WHERE id = $1 AND dispatch = $2 AND status = 'waiting' AND handed_at IS NOT NULL`,
		id, n).Scan(&early.Left, &early.Reason, &early.Text)
	if err != nil {
		return noRows(err, nil)
	}
	return &early
}

// Extend renews the claim's lease to d from now. It returns ErrFenced if the claim is lost or its lease has expired.
func (s *Store) Extend(ctx context.Context, c *Claim, d time.Duration) (err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "extend the lease of delivery %s", c.ID)
	var until time.Time
	err = s.pool.QueryRow(ctx,
		`UPDATE herald.deliveries SET lease_until = now() + $3::interval, updated_at = now()
		  WHERE id = $1 AND claim_no = $2 AND status = 'running' AND lease_until > now() RETURNING lease_until`,
		c.ID, c.No, d).Scan(&until)
	if err != nil {
		return noRows(err, ErrFenced)
	}
	c.LeaseUntil = until
	return nil
}
