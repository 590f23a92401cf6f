package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Hints returns the hints of the claimed delivery, by rank. If Claim.Hints is 0, the delivery has no hint.
func (s *Store) Hints(ctx context.Context, c *ledger.Claim) (list []ledger.Hint, err error) {
	ctx, end := s.StartCall(ctx, &err, "read the hints of delivery %s", c.ID)
	defer end()
	return readHints(ctx, s.Conns, c.ID)
}

// readHints reads the hints of the delivery with this id, by rank. It omits a hint whose job cannot be parsed, because
// a newer version may have written it.
func readHints(ctx context.Context, q postgres.Querier, id uuid.UUID) (list []ledger.Hint, err error) {
	rows, _ := q.Query(ctx, `SELECT rank, job, secret_headers, source, trust, refuted, created_at
		FROM herald.hints WHERE delivery_id = $1 ORDER BY rank`, id)
	var h ledger.Hint
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

// listHints returns the hints of the delivery h, by rank, and how many of them are stored in herald.hints. If none is
// stored, it returns one hint made of known, h's stored job. It returns no hint if the chain follower made that job.
func (s *Store) listHints(ctx context.Context, tx pgx.Tx, h holder,
	known job.Job) (list []ledger.Hint, stored int, err error) {
	list, err = readHints(ctx, tx, h.id)
	if err != nil || len(list) > 0 || h.bound && h.source.Trust == ledger.TrustChain {
		return list, len(list), err
	}
	return []ledger.Hint{{Job: known, SealedHeaders: h.sealed, Source: h.source, Refuted: h.isNotFound()}}, 0, nil
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
	after, added := ledger.AddHint(before, ledger.Hint{Job: brought, SealedHeaders: a.SealedHeaders, Source: a.Source})
	if !added {
		return false, nil
	}
	b := &pgx.Batch{}
	for _, old := range before {
		if !slices.ContainsFunc(after, func(h ledger.Hint) bool { return h.Rank == old.Rank }) {
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
func queueHint(b *pgx.Batch, id uuid.UUID, h ledger.Hint, raw []byte, review bool) {
	queueNamed(b, statements.Named("hint"), pgx.NamedArgs{"delivery_id": id, "rank": h.Rank, "job": raw,
		"sealed_headers": h.SealedHeaders, "source": h.Source.Name, "trust": int(h.Source.Trust), "refuted": h.Refuted,
		"review": review})
}

// Bind replaces the job of the claimed delivery by the event b, in Postgres and in c. It gives the delivery the turn of
// its ordering key, unless another delivery has the turn or delays this one, and sets c.MayCall. If b belongs to
// another agent than the claim, the caller must not call that agent, but record an outcome with Outcome.Rerouted. Bind
// returns ErrFenced if the claim is lost, and ErrNewHint if a hint arrived or the chain follower read the event after
// the claim.
func (s *Store) Bind(ctx context.Context, c *ledger.Claim, b ledger.Binding) (err error) {
	ctx, end := s.StartCall(ctx, &err, "bind delivery %s to its event", c.ID)
	defer end()
	raw, err := encodeJob(b.Job)
	if err != nil {
		return err
	}
	a := ledger.AgentOf(b.Job)
	locked := c.Agent()
	contract, block := emitterOf(b.Job), b.Job.BlockNumber
	if b.Job.IsRetraction() { // a reorg removed the block that a retraction names, so bind.sql must not remember it
		contract, block = "", 0
	}
	var mayCall bool
	err = s.retryTransaction(ctx, func() error {
		batch := &pgx.Batch{}
		if a != locked {
			// First, because a transaction that accepts the agent's first job inserts its row before it locks others.
			batch.Queue(statements.Text("make_agents"), []int64{int64(a.ChainID)}, []string{a.Registry}, []string{a.ID})
		}
		batch.Queue(statements.Text("lock_agent"), locked.ChainID, locked.Registry, locked.ID)
		queueNamed(batch, statements.Named("bind"), pgx.NamedArgs{"delivery_id": c.ID,
			"claim_no": c.No, "hints": c.Hints, "job": raw, "sealed_headers": b.SealedHeaders, "source": b.Source.Name,
			"trust": int(b.Source.Trust), "corrected": storable.Names(b.Corrected), "chain_id": int64(a.ChainID),
			"registry": a.Registry, "agent_id": a.ID, "order_key": b.Job.OrderKey(),
			"order_seq": fmt.Sprint(b.Job.OrderSeq()), "contract": contract, "block": int64(block)}).
			QueryRow(func(row pgx.Row) error { return row.Scan(&mayCall) })
		return s.Conns.SendBatch(ctx, batch).Close()
	})
	if errors.Is(err, pgx.ErrNoRows) {
		now := c.Agent()
		err = s.Conns.QueryRow(ctx, `SELECT identity_registry, agent_id::text FROM herald.work
			WHERE id = $1 AND claim_no = $2 AND status = 'running'`, c.ID, c.No).Scan(&now.Registry, &now.ID)
		if err == nil {
			// If the chain follower moved the delivery to another agent, Record must lock that one's row.
			c.RowAgent = now
			return ledger.ErrNewHint
		}
		return postgres.NoRows(err, ledger.ErrFenced)
	}
	if err == nil {
		c.Job, c.SealedHeaders, c.Source, c.Bound = b.Job, b.SealedHeaders, b.Source, true
		c.MayCall, c.RowAgent = mayCall, a
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
