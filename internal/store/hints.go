package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Source identifies the sender of a job and how much it is trusted.
type Source struct {
	Name  string // "token:<name>", SourceRedis, SourceCommand or SourceChain
	Trust Trust
}

// Trust decides which job's action is used if several jobs name the position of the same event: the one with the
// highest Trust; among equal ones, the job that arrived first.
type Trust int

// The values of Trust.
const (
	TrustChain    Trust = iota // lowest: jobs made from the chain's events, which have the default action
	TrustOrdinary              // senders that may not set a field of job.DirectField
	TrustDirect                // highest: operator commands, and senders that may set these fields
)

// Names of sources that are not tokens.
const (
	SourceChain   = "chain"
	SourceCommand = "command"
	SourceRedis   = "redis" // all writers to Redis together
)

// SourceToken returns the source of an API token.
func SourceToken(name string, t Trust) Source { return Source{"token:" + name, t} }

const (
	maxHints       = 8 // hints of one delivery
	maxHintsOfPeer = 2 // hints of one delivery from the same API token, or from Redis
)

// isPeer reports whether s is Redis or an API token, so that maxHintsOfPeer limits its hints.
func (s Source) isPeer() bool { return s.Name == SourceRedis || strings.HasPrefix(s.Name, "token:") }

// Hint is a job that was sent for a delivery's key. Its position is where the event may be.
type Hint struct {
	Rank          int // order of arrival; 0: the delivery's first job
	Job           job.Job
	SealedHeaders []byte
	Source        Source
	Refuted       bool // a check found that the chain does not have the event at that position
	CreatedAt     time.Time
}

// Hints lists the hints of a claimed delivery, by rank. If Claim.Hints is 0, the list is empty.
func (s *Store) Hints(ctx context.Context, c *Claim) (list []Hint, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "read the hints of delivery %s", c.ID)
	return readHints(ctx, s.pool, c.ID)
}

// readHints reads a delivery's hints. It omits jobs that cannot be parsed, which a newer version may have written.
func readHints(ctx context.Context, q querier, id uuid.UUID) (list []Hint, err error) {
	rows, _ := q.Query(ctx, `SELECT rank, job, secret_headers, source, trust, refuted, created_at
		FROM herald.hints WHERE delivery_id = $1 ORDER BY rank`, id)
	var h Hint
	var raw []byte
	columns := []any{&h.Rank, &raw, &h.SealedHeaders, &h.Source.Name, &h.Source.Trust, &h.Refuted, &h.CreatedAt}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		if h.Job = (job.Job{}); json.Unmarshal(raw, &h.Job) == nil {
			list = append(list, h)
		}
		raw, h.SealedHeaders = nil, nil
		return nil
	})
	return list, err
}

// AddHint appends h to list, the hints of a delivery by rank, and sets its rank. It returns the new list and true. It
// returns list and false if a hint of equal or higher trust names the same event, or if the sender has maxHintsOfPeer
// hints. In a full list, h replaces the first refuted hint; without one, h is added only if its trust is TrustChain,
// and replaces the last hint. The model (store/memory) uses AddHint too.
func AddHint(list []Hint, h Hint) (_ []Hint, added bool) {
	sum, ofPeer := h.Job.EventSum(), 0
	for _, known := range list {
		if known.Job.EventSum() == sum && known.Source.Trust >= h.Source.Trust {
			return list, false
		}
		if known.Source.Name == h.Source.Name {
			ofPeer++
		}
	}
	if h.Source.isPeer() && ofPeer >= maxHintsOfPeer {
		return list, false
	}
	if n := len(list); n > 0 {
		h.Rank = list[n-1].Rank + 1
	}
	if len(list) == maxHints {
		drop := slices.IndexFunc(list, func(h Hint) bool { return h.Refuted })
		if drop < 0 && h.Source.Trust != TrustChain {
			return list, false
		}
		if drop < 0 {
			drop = len(list) - 1
		}
		list = slices.Delete(slices.Clone(list), drop, drop+1)
	}
	return append(list, h), true
}

// HasOtherAction reports whether a hint in list whose trust is trust has another action, or other sealed headers, than
// the job j with the headers sealed. same reports whether the headers of a hint have the same content as sealed
// (sameHeaders).
func HasOtherAction(list []Hint, j job.Job, sealed []byte, trust Trust, same func(sealed []byte) bool) bool {
	return slices.ContainsFunc(list, func(h Hint) bool {
		return h.Source.Trust == trust && (h.Job.ActionSum() != j.ActionSum() || !sameHeaders(sealed, h.SealedHeaders, same))
	})
}

// sameHeaders reports whether a and b, encrypted headers, are both nil, or both present and same(b) is true. same knows
// the content of a. Without same, present headers count as different.
func sameHeaders(a, b []byte, same func(sealed []byte) bool) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return same != nil && same(b)
}

// listHints returns the hints of the delivery h by rank, and how many of them are stored in herald.hints. If none is
// stored, the list has one hint made of h's own job (known). It has none if that job is a follower's, read off the
// chain.
func (s *Store) listHints(ctx context.Context, tx pgx.Tx, h holder, known job.Job) (list []Hint, stored int, err error) {
	if list, err = readHints(ctx, tx, h.id); err != nil || len(list) > 0 || h.bound && h.source.Trust == TrustChain {
		return list, len(list), err
	}
	return []Hint{{Job: known, SealedHeaders: h.sealed, Source: h.source, Refuted: h.isNotFound()}}, 0, nil
}

// addHint stores the job brought as a hint of the delivery h, which has its key and the job known, and ends h's wait
// for the chain, if any. It reports false if AddHint refuses the hint. The transaction has locked h. review schedules a
// Review of h, unless one is pending.
func (s *Store) addHint(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	review bool) (added bool, err error) {
	defer wrapError(&err, "keep another job of %s", a.key)
	before, stored, err := s.listHints(ctx, tx, h, known)
	if err != nil {
		return false, err
	}
	after, added := AddHint(before, Hint{Job: brought, SealedHeaders: a.SealedHeaders, Source: a.Source})
	if !added {
		return false, nil
	}
	b := &pgx.Batch{}
	for _, old := range before {
		if !slices.ContainsFunc(after, func(h Hint) bool { return h.Rank == old.Rank }) {
			b.Queue(`DELETE FROM herald.hints WHERE delivery_id = $1 AND rank = $2`, h.id, old.Rank)
		}
	}
	if stored == 0 && len(after) > 1 {
		queueHint(b, h.id, after[0], h.raw, false)
	}
	queueHint(b, h.id, after[len(after)-1], a.raw, review)
	b.Queue(statement("wake"), h.id)
	return true, tx.SendBatch(ctx, b).Close()
}

func queueHint(b *pgx.Batch, id uuid.UUID, h Hint, raw []byte, review bool) {
	b.Queue(statement("hint"), namedStatement("hint").args(pgx.NamedArgs{"delivery_id": id, "rank": h.Rank, "job": raw,
		"sealed_headers": h.SealedHeaders, "source": h.Source.Name, "trust": int(h.Source.Trust), "refuted": h.Refuted,
		"review": review})...)
}

// ErrNewHint means that a hint arrived after the claim, so that the result of the check may be outdated.
var ErrNewHint = errors.New("another job of the event arrived during the check")

// Binding is an event that a check read from the chain, with the action that applies to it.
type Binding struct {
	Job           job.Job
	SealedHeaders []byte
	Source        Source   // of the action
	Corrected     []string // fields of the jobs that the event contradicts; nil: the stored list stays
}

// Bind replaces the job of the claimed delivery by the event b, in Postgres and in c. It returns ErrFenced if the claim
// is lost, and ErrNewHint if, after the claim, a hint arrived or the chain's follower read the event. The event may
// belong to another agent. Then the caller must not call the agent, but record c with Outcome.Rerouted.
func (s *Store) Bind(ctx context.Context, c *Claim, b Binding) (err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "bind delivery %s to its event", c.ID)
	raw, err := encodeJob(b.Job)
	if err != nil {
		return err
	}
	a := jobAgent(b.Job)
	var done bool
	err = s.pool.QueryRow(ctx, statement("bind"), namedStatement("bind").args(pgx.NamedArgs{"delivery_id": c.ID,
		"claim_no": c.No, "hints": c.Hints, "job": raw, "sealed_headers": b.SealedHeaders, "source": b.Source.Name,
		"trust": int(b.Source.Trust), "corrected": boundNames(b.Corrected), "chain_id": int64(a.ChainID),
		"registry": a.Registry, "agent_id": a.ID, "order_key": b.Job.OrderKey(), "order_seq": fmt.Sprint(b.Job.OrderSeq())})...).Scan(&done)
	if errors.Is(err, pgx.ErrNoRows) {
		now := c.Agent()
		err = s.pool.QueryRow(ctx, `SELECT identity_registry, agent_id::text FROM herald.deliveries
			WHERE id = $1 AND claim_no = $2 AND status = 'running'`, c.ID, c.No).Scan(&now.Registry, &now.ID)
		if err == nil {
			c.agent = now // a follower may have read an event of another agent, to whose backlog the delivery returns
			return ErrNewHint
		}
		return noRows(err, ErrFenced)
	}
	if err == nil {
		c.Job, c.SealedHeaders, c.Source, c.Bound, c.agent = b.Job, b.SealedHeaders, b.Source, true, a
		if b.Corrected != nil {
			c.Corrected = b.Corrected
		}
	}
	return err
}

// encodeJob returns a job as the JSON that Postgres stores (storable.Repair). It returns an error if the job nests too
// deeply.
func encodeJob(j job.Job) ([]byte, error) {
	raw, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("encode the job of %s: %w", j.Key(), err)
	}
	raw, ok := storable.Repair(raw)
	if !ok {
		return nil, fmt.Errorf("encode the job of %s: it nests too deeply to be stored", j.Key())
	}
	return raw, nil
}
