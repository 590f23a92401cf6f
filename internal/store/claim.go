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

// clockTolerance is how long before the end of its wait a delivery may be claimed. Redis' clock may be ahead of
// Postgres' clock, so a task may run early.
const clockTolerance = time.Second

// Claim is the right of one worker to make one attempt at a delivery, until LeaseUntil.
type Claim struct {
	ID            uuid.UUID
	N             int   // dispatch counter of the task (Task.N)
	No            int64 // claim number: fences the writes of this claim
	Attempt       int   // number of the attempt, from 1
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
	Called        bool  // an earlier attempt called the agent, or may have called it
	Epoch         int64 // the agent's epoch; data cached under a lower epoch is outdated
	Enabled       bool  // the agent is enabled

	Budget        int // number of this attempt in the present budget, from 1; a replay begins a new budget
	FetchFailures int // attempts of the present budget whose outcome had FetchFailed
	// Unfinished: an earlier attempt has no outcome, because its worker died or could not record it.
	Unfinished bool
	// InDoubt: an attempt of the present budget is unfinished, so the agent may have received its call. Unfinished
	// attempts of older budgets do not set it: the operator accepted a second call by replaying the delivery.
	InDoubt     bool
	Replay      bool // an operator has replayed the delivery
	Policy      Policy
	Preferences Preferences // the agent's, as far as they are in force
	Protocol    string      // MCP revision of the agent's last answer; empty: it has not answered yet
	Succeeded   bool        // a delivery to the agent succeeded within RecentSuccess
	Traceparent string      // traceparent of the job; empty: the job has none
	Again       bool        // the delivery waited before, or this is not its first task
	// AheadOf: this delivery overtakes an earlier open delivery of its ordering key, which no longer blocks it because
	// its holds_until has passed. It is the order_seq of that delivery; empty: none is overtaken.
	AheadOf string

	// kind and agent are from columns of the delivery's row, because the job may be unreadable.
	kind  string
	agent Agent

	week string // the partition where the claim inserted the attempt's row; empty: unknown
}

// RecentSuccess is how recent an agent's last success must be to set Claim.Succeeded.
const RecentSuccess = time.Hour

// Policy contains an operator's settings for one agent. An empty field means the default.
type Policy struct {
	// OnUnknown decides what happens to a delivery if it is unknown whether the agent received the call:
	// OnUnknownResend (default) or OnUnknownHold.
	OnUnknown string `json:"onUnknown,omitempty"`
	// Order is OrderStrict (default) or OrderOff: whether deliveries of one ordering key are sent in order. It has an
	// effect only if Config.StrictOrder is set.
	Order string `json:"order,omitempty"`
	// Preferences is PreferencesFollow (default) or PreferencesIgnore: whether the agent's preferences have an effect.
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

// parsePolicy parses a stored policy. Unknown fields and values, which an operator or a newer version may have written,
// are ignored.
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

// Merge returns p with its fields replaced by the non-empty fields of o.
func (p Policy) Merge(o Policy) Policy {
	return Policy{OnUnknown: cmp.Or(o.OnUnknown, p.OnUnknown), Order: cmp.Or(o.Order, p.Order),
		Preferences: cmp.Or(o.Preferences, p.Preferences)}
}

// checkValues returns an error if a field has none of its allowed values.
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

// ErrUnreadableJob means that a delivery's stored job cannot be parsed: a newer version wrote it, or it was edited or
// deleted by hand. The claim returned with the error is valid, with an empty Job, so that the caller can record an
// outcome.
var ErrUnreadableJob = errors.New("the stored job cannot be read")

// EarlyError is returned by Claim when the task is the newest one but the delivery is not yet due.
type EarlyError struct {
	Left   time.Duration // time until the delivery is due
	Reason reason.Reason // of the wait
	Text   string        // stored error text of the wait
}

// Error implements error.
func (e *EarlyError) Error() string {
	return fmt.Sprintf("it waits (%s) for another %s: %s", e.Reason, e.Left, e.Text)
}

// Claim claims delivery id for its task n (Task.N), until the lease ends by Postgres' clock. It returns nil without an
// error if the task is outdated or the delivery cannot be claimed, for example because another worker has claimed it.
// It returns an *EarlyError if the delivery is not due, and a claim with ErrUnreadableJob if its job cannot be parsed.
//
// Concurrent first claims (n = 1) share a statement (coalescer). If ctx ends while the statement runs, Claim still
// returns the claim, and the caller records its outcome as usual.
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

// claim returns the claim of the row for task n. unfinished is the number of the delivery's last earlier attempt
// without an outcome; 0: none.
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

// weeks matches the names of the partitions of attempts (see ensure_attempt_partitions in migrations).
var weeks = regexp.MustCompile(`^(?:herald\.)?(attempts_(?:default|[0-9]{8}))$`)

// parseWeek returns the qualified name of a partition of attempts, given its name as Postgres writes it, or "" for any
// other table.
func parseWeek(table string) string {
	if m := weeks.FindStringSubmatch(table); m != nil {
		return "herald." + m[1]
	}
	return ""
}

// claimAgain claims one delivery for its task n, in one round trip and one commit. It is for the claims that claimGroup
// cannot decide, such as that of a delivery that waits, or whose task is not its first. A delivery that has to wait
// again is not claimed: another of its ordering key goes first, or none of the agent's eight slots is free. claimAgain
// also looks up the last attempt without an outcome.
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

// explainRefusal returns why task n cannot claim the delivery: an *EarlyError if the delivery waits with that task, nil
// for any other cause.
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

// Extend makes the claim's lease end d from now, by Postgres' clock. It returns ErrFenced if the claim is lost or its
// lease has expired.
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
