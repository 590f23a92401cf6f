package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/job"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// MaxAccept is how many jobs one Accept takes: one transaction, with every agent concerned locked.
const MaxAccept = 500

// Intake is one valid job on its way in.
type Intake struct {
	Job           job.Job
	SealedHeaders []byte // action.endpoint.headers, encrypted; nil without

	// Refused, when set, stores the job as rejected with reason invalid_job: chain and Redis intakes have nobody to answer.
	Refused string
	Key     string // overrides the job's own key, for bytes that are no job: "invalid:<sha256>"
}

// Verdict says what became of an intake.
type Verdict string

const (
	Accepted   Verdict = "accepted"
	Known      Verdict = "known"
	Conflict   Verdict = "conflict"
	Refreshed  Verdict = "refreshed" // AgentUpdated: the agent's epoch was raised, no delivery
	acceptSlow Verdict = ""
)

// Acceptance answers one Intake. For Known, ID and Status are those of the delivery that is there.
type Acceptance struct {
	Verdict Verdict
	ID      uuid.UUID
	Key     string
	Field   string // Conflict: the event's field that differs
	Status  Status // of the delivery
}

// Accept commits jobs and hands out what the agents have room for; the caller puts the returned tasks into Redis. Answers
// come in the order of the intakes. Calling it again with the same jobs is harmless: they are known. At most MaxAccept.
func (s *Store) Accept(ctx context.Context, in []Intake) ([]Acceptance, []Task, error) {
	if len(in) > MaxAccept {
		return nil, nil, fmt.Errorf("store: at most %d jobs at once, got %d", MaxAccept, len(in))
	}
	if len(in) == 0 {
		return nil, nil, nil
	}
	for {
		out, tasks, err := s.accept(ctx, in)
		var pe *pgconn.PgError
		if errors.As(err, &pe) && pe.Code == "40P01" && ctx.Err() == nil {
			continue // deadlock: keys of one agent under two registries; one of the two always gets through
		}
		if err != nil {
			return nil, nil, fmt.Errorf("accept %d jobs: %w", len(in), Plain(err))
		}
		return out, tasks, nil
	}
}

func (s *Store) accept(ctx context.Context, in []Intake) ([]Acceptance, []Task, error) {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()

	agents := agentsOf(in)
	if err := s.lockAgents(ctx, tx, agents); err != nil {
		return nil, nil, err
	}
	out := make([]Acceptance, len(in))
	if err := s.insert(ctx, tx, in, out); err != nil {
		return nil, nil, err
	}
	if err := s.settleKnown(ctx, tx, in, out); err != nil {
		return nil, nil, err
	}
	tasks, err := s.dispatchIn(ctx, tx, agents)
	if err != nil {
		return nil, nil, err
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, nil, err
	}
	return out, tasks, nil
}

func (s *Store) lockAgents(ctx context.Context, tx pgx.Tx, agents []Agent) error {
	chains, registries, ids := make([]int64, len(agents)), make([]string, len(agents)), make([]string, len(agents))
	for i, a := range agents {
		chains[i], registries[i], ids[i] = int64(a.ChainID), a.Registry, a.ID
	}
	b := &pgx.Batch{}
	b.Queue(s.sql.makeAgents, chains, registries, ids)
	b.Queue(s.sql.lockAgents, chains, registries, ids)
	return tx.SendBatch(ctx, b).Close()
}

// insert takes what is new, and raises epochs. What is known stays acceptSlow.
func (s *Store) insert(ctx context.Context, tx pgx.Tx, in []Intake, out []Acceptance) error {
	b := &pgx.Batch{}
	for i, it := range in {
		if it.Job.Kind == job.KindAgentUpdated && it.Refused == "" {
			a := agentOf(it.Job)
			b.Queue(`UPDATE herald.agents SET epoch = epoch + 1, updated_at = now()
			          WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3`, a.ChainID, a.Registry, a.ID).
				Exec(func(pgconn.CommandTag) error { out[i] = Acceptance{Verdict: Refreshed}; return nil })
			continue
		}
		key := it.key()
		if err := s.queueInsert(b, it, key, job.IDOf(key), &out[i]); err != nil {
			return err
		}
	}
	return tx.SendBatch(ctx, b).Close()
}

func (s *Store) queueInsert(b *pgx.Batch, it Intake, key string, id uuid.UUID, out *Acceptance) error {
	status, reason := Queued, ""
	var raw []byte // stays null for what is refused: it may hold secrets that nobody found and encrypted
	if it.Refused != "" {
		status, reason = Rejected, "invalid_job"
	} else {
		var err error
		if raw, err = json.Marshal(it.Job); err != nil {
			return fmt.Errorf("encode job %s: %w", key, err)
		}
	}
	a := agentOf(it.Job)
	b.Queue(s.sql.accept, id, key, it.Job.Kind, a.ChainID, a.Registry, a.ID, it.Job.OrderKey(), fmt.Sprint(it.Job.OrderSeq()),
		raw, it.SealedHeaders, status, null(reason), null(text(it.Refused, maxErrorBytes))).
		QueryRow(func(row pgx.Row) error {
			err := row.Scan(&out.ID)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			out.Verdict, out.Key, out.Status = Accepted, key, status
			return err
		})
	return nil
}

// settleKnown decides about keys that exist: known, queued anew after a reorg, given away, or in conflict (DESIGN §3).
func (s *Store) settleKnown(ctx context.Context, tx pgx.Tx, in []Intake, out []Acceptance) error {
	for i := range in {
		if out[i].Verdict != acceptSlow {
			continue
		}
		if err := s.settle(ctx, tx, in[i], &out[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) settle(ctx context.Context, tx pgx.Tx, it Intake, out *Acceptance) error {
	key := it.key()
	out.Key = key
	var raw []byte
	err := tx.QueryRow(ctx, `SELECT id, status, job FROM herald.deliveries WHERE key = $1 FOR UPDATE`, key).
		Scan(&out.ID, &out.Status, &raw)
	if err != nil {
		return fmt.Errorf("look up %s: %w", key, err)
	}
	out.Verdict = Known
	if raw == nil || it.Refused != "" {
		return nil // retention dropped its job: the key alone is what is known
	}
	var known job.Job
	if err := json.Unmarshal(raw, &known); err != nil {
		return fmt.Errorf("read the stored job of %s: %w", key, err)
	}
	if field, differs := it.Job.Conflict(known); differs {
		return s.displace(ctx, tx, it, field, out)
	}
	fresh, err := json.Marshal(it.Job)
	if err != nil {
		return err
	}
	err = tx.QueryRow(ctx, s.sql.reopen, out.ID, fresh, it.SealedHeaders).Scan(&out.ID)
	switch {
	case err == nil:
		out.Verdict, out.Status = Accepted, Queued
	case !errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("queue %s anew: %w", key, err)
	}
	return nil
}

// displace gives the key of a row that turned out not to be an event to the one that claims it now, or reports a conflict.
func (s *Store) displace(ctx context.Context, tx pgx.Tx, it Intake, field string, out *Acceptance) error {
	old := out.ID
	var moved string
	err := tx.QueryRow(ctx, s.sql.displace, old).Scan(&moved)
	if errors.Is(err, pgx.ErrNoRows) {
		out.Verdict, out.Field = Conflict, field
		return nil
	}
	if err != nil {
		return fmt.Errorf("free the key %s: %w", out.Key, err)
	}
	b := &pgx.Batch{}
	if err := s.queueInsert(b, it, out.Key, job.IDOf(moved), out); err != nil {
		return err
	}
	return tx.SendBatch(ctx, b).Close()
}

// dispatchIn hands out for several agents whose rows are locked.
func (s *Store) dispatchIn(ctx context.Context, tx pgx.Tx, agents []Agent) ([]Task, error) {
	var tasks []Task
	b := &pgx.Batch{}
	for _, a := range agents {
		b.Queue(s.sql.dispatch, a.ChainID, a.Registry, a.ID, HandOut).Query(func(rows pgx.Rows) error {
			got, err := pgx.CollectRows(rows, scanTask)
			tasks = append(tasks, got...)
			return err
		})
	}
	return tasks, tx.SendBatch(ctx, b).Close()
}

func (it Intake) key() string {
	if it.Key != "" {
		return it.Key
	}
	return it.Job.Key()
}

// agentsOf lists the agents of a batch once each, in the order in which they are locked.
func agentsOf(in []Intake) []Agent {
	agents := make([]Agent, 0, len(in))
	for _, it := range in {
		if it.Refused == "" { // bytes that are no job have no agent
			agents = append(agents, agentOf(it.Job))
		}
	}
	slices.SortFunc(agents, func(a, b Agent) int {
		return cmp.Or(cmp.Compare(a.ChainID, b.ChainID), strings.Compare(a.Registry, b.Registry), strings.Compare(a.ID, b.ID))
	})
	return slices.Compact(agents)
}

func agentOf(j job.Job) Agent {
	id := "0"
	if j.AgentID != nil {
		id = j.AgentID.String()
	}
	return Agent{ChainID: j.ChainID, Registry: strings.ToLower(j.IdentityRegistry.Hex()), ID: id}
}
