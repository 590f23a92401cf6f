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
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Source identifies the sender of a job, and how much the sender's choice of an action is trusted.
type Source struct {
	Name  string // "token:<name>", SourceRedis, SourceCommand or SourceChain
	Trust Trust
}

// Trust decides which action is used if several jobs name the same event at the same position. The action of the job
// with the highest Trust is used. Among jobs with equal Trust, the action of the first to arrive is used.
type Trust int

// The values of Trust.
const (
	TrustChain    Trust = iota // lowest: jobs made from events of the chain, which have the default action
	TrustOrdinary              // senders that must not set the fields that job.DirectField checks, such as an endpoint
	TrustDirect                // highest: commands of the operator, and senders that may set these fields
)

// Values of Source.Name for sources that are not API tokens.
const (
	SourceChain   = "chain"
	SourceCommand = "command"
	SourceRedis   = "redis" // all programs that write jobs to Redis; they count as one sender
)

// SourceToken returns the source for jobs that were sent with the API token of this name.
func SourceToken(name string, t Trust) Source { return Source{"token:" + name, t} }

const (
	maxHints       = 8 // hints of one delivery
	maxHintsOfPeer = 2 // hints of one delivery that one API token, or all writers to Redis together, may send
)

// isPeer reports whether maxHintsOfPeer limits the hints of s: s is an API token or Redis.
func (s Source) isPeer() bool { return s.Name == SourceRedis || strings.HasPrefix(s.Name, "token:") }

// Hint is one of several jobs that were sent for one delivery's key. It names a position at which the chain may have
// the event, and an action. A worker's check reads the hints' positions and binds the delivery to the event that it
// finds (Bind).
type Hint struct {
	Rank          int // number in the order of arrival; 0: the job with which the delivery began
	Job           job.Job
	SealedHeaders []byte
	Source        Source
	Refuted       bool // a check found that the event is not at this position
	CreatedAt     time.Time
}

// Hints returns the hints of the claimed delivery, by rank. If Claim.Hints is 0, the delivery has no hint.
func (s *Store) Hints(ctx context.Context, c *Claim) (list []Hint, err error) {
	ctx, end := s.StartCall(ctx, &err, "read the hints of delivery %s", c.ID)
	defer end()
	return readHints(ctx, s.Conns, c.ID)
}

// readHints reads the hints of the delivery with this id, by rank. It omits a hint whose job cannot be parsed, because
// a newer version may have written it.
func readHints(ctx context.Context, q postgres.Querier, id uuid.UUID) (list []Hint, err error) {
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

// AddHint adds the hint h to the hints of a delivery (list, by rank), and sets h's rank. It returns the new list and
// true. It returns the unchanged list and false in these cases:
//   - A hint of equal or higher trust names the same event at the same position.
//   - h's sender is an API token or Redis, and the list already has maxHintsOfPeer of its hints.
//   - The list has maxHints, none of them is refuted, and h's trust is not TrustChain.
//
// If the list has maxHints and h is added, h replaces the first refuted hint, or else the last one. The model
// (store/model) uses AddHint too.
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

// HasOtherAction reports whether the list has a hint with this trust whose action or headers differ from those of the
// job j. sealed has the encrypted headers of j, and same compares other encrypted headers with them (sameHeaders).
func HasOtherAction(list []Hint, j job.Job, sealed []byte, trust Trust, same func(sealed []byte) bool) bool {
	return slices.ContainsFunc(list, func(h Hint) bool {
		return h.Source.Trust == trust &&
			(h.Job.ActionSum() != j.ActionSum() || !sameHeaders(sealed, h.SealedHeaders, same))
	})
}

// sameHeaders reports whether two jobs have the same headers. a and b are their encrypted headers; nil: the job has
// none. same decrypts its argument and compares it with a. If same is nil, encrypted headers count as different.
func sameHeaders(a, b []byte, same func(sealed []byte) bool) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return same != nil && same(b)
}

// listHints returns the hints of the delivery h, by rank, and how many of them are stored in herald.hints. If none is
// stored, it returns one hint made of known, h's stored job. It returns no hint if the chain follower made that job.
func (s *Store) listHints(ctx context.Context, tx pgx.Tx, h holder,
	known job.Job) (list []Hint, stored int, err error) {
	if list, err = readHints(ctx, tx, h.id); err != nil || len(list) > 0 || h.bound && h.source.Trust == TrustChain {
		return list, len(list), err
	}
	return []Hint{{Job: known, SealedHeaders: h.sealed, Source: h.source, Refuted: h.isNotFound()}}, 0, nil
}

// chainReasons are the reasons for which a delivery waits for the chain.
var chainReasons = []outcome.Reason{outcome.NotConfirmed, outcome.ChainUnavailable}

// addHint stores an arriving job (brought) as a hint of the delivery h, which has the same key. known is h's stored
// job, and tx has locked h. If h waits for the chain (not_confirmed, chain_unavailable), addHint ends the wait, so that
// the hint is checked at once. If review is true, it also schedules a Review of h, unless one is scheduled. It returns
// false, and changes nothing, if AddHint rejects the hint.
func (s *Store) addHint(ctx context.Context, tx pgx.Tx, a arrival, h holder, brought, known job.Job,
	review bool) (added bool, err error) {
	defer postgres.WrapError(&err, "keep another job of %s", a.key)
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
	b.Queue(statements.Text("wake"), h.id, chainReasons)
	return true, tx.SendBatch(ctx, b).Close()
}

// queueHint queues in b the statement that stores the hint h of the delivery with this id. raw is h's job as JSON. If
// review is true, the statement also schedules a Review.
func queueHint(b *pgx.Batch, id uuid.UUID, h Hint, raw []byte, review bool) {
	queueNamed(b, statements.Named("hint"), pgx.NamedArgs{"delivery_id": id, "rank": h.Rank, "job": raw,
		"sealed_headers": h.SealedHeaders, "source": h.Source.Name, "trust": int(h.Source.Trust), "refuted": h.Refuted,
		"review": review})
}

// ErrNewHint is returned by Bind if, after the claim, a hint arrived or the chain follower read the event. The worker's
// check did not know that, so its result may be outdated.
var ErrNewHint = errors.New("another job of the event arrived during the check")

// Binding is an event that a worker's check read from the chain, together with the action for it.
type Binding struct {
	Job           job.Job  // the event as read from the chain, with the action (tool, endpoint, arguments)
	SealedHeaders []byte   // encrypted headers of the action's endpoint; nil: none
	Source        Source   // sender of the job that the action is from
	Corrected     []string // fields in which jobs that were sent differ from the event; nil: Bind keeps the old list
}

// Bind replaces the job of the claimed delivery by the event b, in Postgres and in c. It gives the delivery the turn of
// its ordering key, unless another delivery has the turn or delays this one, and sets c.MayCall. If b belongs to
// another agent than the claim, the caller must not call that agent, but record an outcome with Outcome.Rerouted. Bind
// returns ErrFenced if the claim is lost, and ErrNewHint if a hint arrived or the chain follower read the event after
// the claim.
func (s *Store) Bind(ctx context.Context, c *Claim, b Binding) (err error) {
	ctx, end := s.StartCall(ctx, &err, "bind delivery %s to its event", c.ID)
	defer end()
	raw, err := encodeJob(b.Job)
	if err != nil {
		return err
	}
	a := jobAgent(b.Job)
	locked := c.Agent()
	batch := &pgx.Batch{}
	batch.Queue(statements.Text("lock_agent"), locked.ChainID, locked.Registry, locked.ID)
	contract, block := emitterOf(b.Job), b.Job.BlockNumber
	if b.Job.IsRetraction() { // a reorg removed the block that a retraction names, so bind.sql must not remember it
		contract, block = "", 0
	}
	var mayCall bool
	queueNamed(batch, statements.Named("bind"), pgx.NamedArgs{"delivery_id": c.ID,
		"claim_no": c.No, "hints": c.Hints, "job": raw, "sealed_headers": b.SealedHeaders, "source": b.Source.Name,
		"trust": int(b.Source.Trust), "corrected": boundNames(b.Corrected), "chain_id": int64(a.ChainID),
		"registry": a.Registry, "agent_id": a.ID, "order_key": b.Job.OrderKey(),
		"order_seq": fmt.Sprint(b.Job.OrderSeq()), "contract": contract, "block": int64(block)}).
		QueryRow(func(row pgx.Row) error { return row.Scan(&mayCall) })
	err = s.Conns.SendBatch(ctx, batch).Close()
	if errors.Is(err, pgx.ErrNoRows) {
		now := c.Agent()
		err = s.Conns.QueryRow(ctx, `SELECT identity_registry, agent_id::text FROM herald.work
			WHERE id = $1 AND claim_no = $2 AND status = 'running'`, c.ID, c.No).Scan(&now.Registry, &now.ID)
		if err == nil {
			c.agent = now // if the chain follower moved the delivery to another agent, Record must lock that one's row
			return ErrNewHint
		}
		return postgres.NoRows(err, ErrFenced)
	}
	if err == nil {
		c.Job, c.SealedHeaders, c.Source, c.Bound = b.Job, b.SealedHeaders, b.Source, true
		c.MayCall, c.agent = mayCall, a
		if b.Corrected != nil {
			c.Corrected = b.Corrected
		}
	}
	return err
}

// encodeJob encodes a job as JSON that Postgres can store (storable.Repair). It returns an error if the job nests too
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
