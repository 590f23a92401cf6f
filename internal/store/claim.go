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

// clockTolerance lets a scheduled task that Redis releases a little early by Postgres' clock still be claimed.
const clockTolerance = time.Second

// Claim is the right to deliver one delivery once, until LeaseUntil.
type Claim struct {
	ID            uuid.UUID
	N             int // the task's dispatch counter
	No            int64
	Attempt       int // 1-based
	StartedAt     time.Time
	LeaseUntil    time.Time // Postgres' clock
	Key           string
	Job           job.Job
	SealedHeaders []byte
	CreatedAt     time.Time
	Called        bool  // an earlier attempt reached the agent, or may have
	Epoch         int64 // of the agent: what is cached under an older one is stale
	Enabled       bool

	Budget        int  // attempts of the present budget, this one included: 1-based; a replay begins another
	FetchFailures int  // outcomes with FetchFailed in the present budget
	Unfinished    bool // an earlier attempt has no outcome: its worker died, or could not record what it knew
	InDoubt       bool // one of the present budget has none; what was in doubt before a replay, the replay has answered
	Replay        bool // a replay asked for it
	Policy        Policy
	Preferences   Preferences // what the agent asked for, as far as it is in force
	Protocol      string      // the MCP revision that the agent spoke last; empty: it has not yet
	Succeeded     bool        // a delivery to the agent succeeded within RecentSuccess
	Traceparent   string      // came with the job; empty: none
	Again         bool        // it waited, or this is not its first task
	AheadOf       string      // order_seq of an earlier one of its client that has not ended and had its time (60 s from its first attempt); empty: none

	kind  string // from the row's own columns, as is agent: the job may be unreadable
	agent Agent
	week  string // the table that holds the attempt's row; empty: not known
	rank  int64  // of the job among those of its event (succeed.sql)
}

// RecentSuccess is how long an agent's success counts: Claim.Succeeded.
const RecentSuccess = time.Hour

// Policy is what an operator decided about an agent.
type Policy struct {
	// OnUnknown is what becomes of a delivery when nobody knows whether the agent took the call: OnUnknownResend
	// (default) or OnUnknownHold.
	OnUnknown string `json:"onUnknown,omitempty"`
	// Order is OrderStrict (default) or OrderOff: each client's deliveries keep their order, or do not. It counts only
	// where order is strict at all (Config.StrictOrder).
	Order string `json:"order,omitempty"`
	// Preferences is what becomes of the agent's own: PreferencesFollow (default) or PreferencesIgnore.
	Preferences string `json:"preferences,omitempty"`
}

// The values of Policy.Order.
const (
	OrderStrict = "strict"
	OrderOff    = "off"
)

// The values of Policy.OnUnknown.
const (
	OnUnknownResend = "resend" // it is sent again, with the same deliveryId
	OnUnknownHold   = "hold"   // it is held (held_unknown) until an operator replays or cancels it
)

// The values of Policy.Preferences.
const (
	PreferencesFollow = "follow" // they lower what the agent gets
	PreferencesIgnore = "ignore" // they are kept and shown, and change nothing
)

// parsePolicy reads a policy leniently: what is not understood, edited by hand or of a newer version, is as if it were
// not there.
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

// Merge is the policy with what o says.
func (p Policy) Merge(o Policy) Policy {
	return Policy{OnUnknown: cmp.Or(o.OnUnknown, p.OnUnknown), Order: cmp.Or(o.Order, p.Order),
		Preferences: cmp.Or(o.Preferences, p.Preferences)}
}

// checkValues names a value that a policy cannot have.
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

// Agent names the claim's agent.
func (c *Claim) Agent() Agent {
	if c.agent == (Agent{}) {
		return jobAgent(c.Job)
	}
	return c.agent
}

// ErrUnreadableJob means that a row's job cannot be read any more: written by a newer version, edited by hand, or
// dropped. The claim that comes with it is valid, so that the outcome can be recorded; its Job is empty.
var ErrUnreadableJob = errors.New("the stored job cannot be read")

// EarlyError refuses a claim whose task is the right one, while its delivery still waits.
type EarlyError struct {
	Left   time.Duration // until it is due
	Reason reason.Reason // that it waits for
	Text   string        // the sentence that the wait was recorded with
}

func (e *EarlyError) Error() string {
	return fmt.Sprintf("it waits (%s) for another %s: %s", e.Reason, e.Left, e.Text)
}

// Claim takes delivery id for task n. A nil claim without error is a refusal: somebody else has it, or the task is old;
// with an EarlyError the delivery is not due. The lease counts from Postgres' now().
//
// First claims that come together are committed together (coalescer). One that was under way when ctx ended is given
// nevertheless, and the caller records what becomes of it, as of any other.
func (s *Store) Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (c *Claim, err error) {
	if n < 1 || n > math.MaxInt32 {
		return nil, nil // no task of ours
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

// fields are where claim.sql's columns go.
func (r *claimRow) fields() []any {
	return []any{&r.No, &r.Attempt, &r.StartedAt, &r.LeaseUntil, &r.job, &r.SealedHeaders, &r.Key, &r.kind,
		&r.CreatedAt, &r.Called,
		&r.agent.ChainID, &r.agent.Registry, &r.agent.ID, &r.Epoch, &r.Enabled,
		&r.base, &r.FetchFailures, &r.Replay, &r.policy, &r.Protocol, &r.Succeeded, &r.week, &r.rank, &r.Traceparent,
		&r.AheadOf, &r.preferences}
}

// claim is what task n of the row's delivery is given. unfinished is the last of its attempts without an outcome.
func (r *claimRow) claim(n, unfinished int) (*Claim, error) {
	c := r.Claim
	c.N, c.Budget, c.Policy, c.week = n, max(c.Attempt-r.base, 1), parsePolicy(r.policy), parseWeek(c.week)
	c.Preferences = parsePreferences(r.preferences).InForce(c.Policy, c.StartedAt)
	c.Unfinished, c.InDoubt = unfinished > 0, unfinished > r.base
	c.Called = c.Called || c.Unfinished
	if err := json.Unmarshal(r.job, &c.Job); err != nil {
		c.Job = job.Job{}
		return &c, fmt.Errorf("%w: %w", ErrUnreadableJob, err)
	}
	return &c, nil
}

// weeks are the tables that attempts go to (migrations: ensure_attempt_partitions).
var weeks = regexp.MustCompile(`^(?:herald\.)?(attempts_(?:default|[0-9]{8}))$`)

// parseWeek is the table that Postgres named, or empty when that is none of ours.
func parseWeek(table string) string {
	if m := weeks.FindStringSubmatch(table); m != nil {
		return "herald." + m[1]
	}
	return ""
}

// claimAgain claims a delivery that waited, or for a task after its first, in one round trip and one commit. Unlike a
// first one, which counts as dispatched already and has no attempt before it, it must find room among its agent's eight,
// and is told the last of its attempts that has no outcome.
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
	// The claim's error is kept apart: a refusal must not look like a batch that failed.
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

// explainRefusal is an EarlyError when the delivery waits with task n.
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

// Extend renews the claim's lease to d from now. ErrFenced: it is not ours any more, or has run out.
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
