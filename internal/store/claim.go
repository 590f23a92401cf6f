package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/job"
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
}

// Agent names the claim's agent.
func (c *Claim) Agent() Agent { return agentOf(c.Job) }

// ErrUnreadableJob means that a row's job cannot be read any more: written by a newer version, or edited by hand. The
// claim that comes with it is valid, so that the outcome can be recorded.
var ErrUnreadableJob = errors.New("the stored job cannot be read")

// Claim takes delivery id for task n. A nil claim without error is a refusal: somebody else has it, the task is old, or
// the delivery is not due. The lease counts from Postgres' now().
func (s *Store) Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*Claim, error) {
	c := &Claim{ID: id, N: n}
	var raw []byte
	err := s.pool.QueryRow(ctx, s.sql.claim, id, n, lease, clockTolerance).Scan(
		&c.No, &c.Attempt, &c.StartedAt, &c.LeaseUntil, &raw, &c.SealedHeaders, &c.Key, &c.CreatedAt, &c.Called, &c.Epoch, &c.Enabled)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("claim delivery %s: %w", id, Plain(err))
	}
	if err := json.Unmarshal(raw, &c.Job); err != nil {
		return c, fmt.Errorf("claim delivery %s: %w: %w", id, ErrUnreadableJob, err)
	}
	return c, nil
}

// Extend renews the claim's lease to d from now. ErrFenced: it is not ours any more, or has run out.
func (s *Store) Extend(ctx context.Context, c *Claim, d time.Duration) error {
	var until time.Time
	err := s.pool.QueryRow(ctx,
		`UPDATE herald.deliveries SET lease_until = now() + $3::interval, updated_at = now()
		  WHERE id = $1 AND claim_no = $2 AND status = 'running' AND lease_until > now() RETURNING lease_until`,
		c.ID, c.No, d).Scan(&until)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrFenced
	}
	if err != nil {
		return fmt.Errorf("extend the lease of delivery %s: %w", c.ID, Plain(err))
	}
	c.LeaseUntil = until
	return nil
}
