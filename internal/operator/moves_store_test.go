package operator

import (
	"context"
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// oneStore is a Backend with one open store, and without Redis.
type oneStore struct {
	Backend
	st *store.Store
}

func (b oneStore) OpenStore(context.Context, StoreOptions) (*Session, error) {
	return &Session{Ledger: b.st, Records: records.New(b.st), Close: func() {}}, nil
}

// TestReplayDuringOtherCommands: while a replay works on its selection, other commands change selected deliveries. A
// cancelled one stays cancelled, and one that another replay delivered is not delivered again.
func TestReplayDuringOtherCommands(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		was  ledger.Outcome // of two deliveries
		ask  MoveRequest
		then func(*testing.T, *Operator, uuid.UUID) // changes the second one when the first one was replayed
		want outcome.Status
	}{
		"cancelled": {
			was: ledger.Outcome{Status: outcome.Held, Reason: outcome.AuthRequired, Stage: "call", Error: "it said 401"},
			ask: MoveRequest{Selection: Selection{Status: "held"}},
			then: func(t *testing.T, o *Operator, id uuid.UUID) {
				_, err := o.Cancel(t.Context(), MoveRequest{IDs: []string{id.String()}})
				heraldtest.Must(t, err)
			}, want: outcome.Cancelled},
		"filtered, and delivered": {
			was: ledger.Outcome{Status: outcome.Skipped, Reason: outcome.Filtered, Stage: "check", Error: "a filter"},
			ask: MoveRequest{Selection: Selection{Reason: "filtered"}, Force: true},
			then: func(t *testing.T, o *Operator, id uuid.UUID) {
				st, err := o.OpenStore(t.Context())
				heraldtest.Must(t, err)
				_, _, tasks, err := st.Replay(t.Context(), []uuid.UUID{id}, true)
				heraldtest.Must(t, err)
				end(t, st, tasks[0], ledger.Outcome{Status: outcome.Delivered, Called: true, Stage: "call", AgentOK: true})
			}, want: outcome.Delivered},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := storetest.Open(t, heraldtest.Postgres(t, postgres.Migrate), 0)
			o := &Operator{Config: Config{Backend: oneStore{st: st}}}
			session, err := o.OpenStore(t.Context())
			heraldtest.Must(t, err)
			answers, tasks, err := st.Accept(t.Context(), []ledger.Intake{{Job: storetest.Feedback(1, 1)}, {Job: storetest.Feedback(2, 1)}})
			heraldtest.Must(t, err)
			for _, task := range tasks {
				end(t, session, task, c.was)
			}
			second := answers[1].ID
			c.ask.Yes, c.ask.Rate = true, 5 // one delivery in a batch
			c.ask.Progress = func(p MoveProgress) {
				if p.Done == 1 {
					c.then(t, o, second)
				}
			}
			out, err := o.Replay(t.Context(), c.ask)
			if out == nil || out.Moved != 1 || len(out.Left) != 1 || out.Left[0].ID != second {
				t.Errorf("%+v, %v", out, err)
			}
			d, err := session.Delivery(t.Context(), second)
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "the second one", d.Status, c.want)
		})
	}
}

// end claims a delivery and records its outcome.
func end(t *testing.T, st *Session, task ledger.Task, o ledger.Outcome) {
	t.Helper()
	claim, err := st.Claim(t.Context(), task.ID, task.N, 1e9*60)
	heraldtest.Must(t, err)
	_, err = st.Record(t.Context(), claim, o)
	heraldtest.Must(t, err)
}
