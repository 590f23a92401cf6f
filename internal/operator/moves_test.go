package operator

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

const oneID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"

func TestFilter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	chain := uint64(8453)
	for _, c := range []struct {
		in   Selection
		want records.Filter
	}{
		{Selection{}, records.Filter{}},
		{Selection{Agent: "8453:42"}, records.Filter{ChainID: &chain, AgentID: "42"}},
		{Selection{Status: "dead", Reason: "timeout", Kind: "NewFeedback"}, records.Filter{Statuses: []outcome.Status{outcome.Dead}, Reason: "timeout", Kind: "NewFeedback"}},
		{Selection{Since: "24h", Until: "90m"}, records.Filter{Since: now.Add(-24 * time.Hour), Until: now.Add(-90 * time.Minute)}},
		{Selection{Since: "2026-01-31T12:00:00Z"}, records.Filter{Since: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)}},
	} {
		got, err := c.in.parseFilter(now)
		if err != nil {
			t.Errorf("%+v: %v", c.in, err)
		}
		heraldtest.Equal(t, fmt.Sprintf("the filter of %+v", c.in), got, c.want)
	}
	// The audit records absolute times, not relative ones.
	f, err := Selection{Agent: "8453:42", Status: "dead", Since: "1h"}.parseFilter(now)
	if got := string(mustMarshal(f.Describe())); err != nil || got != `{"agent":"8453:42","since":"2026-03-04T04:06:07Z","status":"dead"}` {
		t.Errorf("%s, %v", got, err)
	}
}

// TestTakenDeliveries checks which deliveries a command takes, and which ended ones it may replay, although another command
// may have ended them after they were selected. A filter without --status takes deliveries that may still need an action,
// and never delivered ones.
func TestTakenDeliveries(t *testing.T) {
	t.Parallel()
	type statuses = []outcome.Status
	open := statuses{outcome.Dead, outcome.Rejected, outcome.Skipped, outcome.Held, outcome.Waiting}
	all, cancellable := append(slices.Clone(open), outcome.Cancelled), statuses{outcome.Queued, outcome.Waiting, outcome.Held}
	for _, c := range []struct {
		verb func(MoveRequest) verb
		ask  MoveRequest
		take statuses
		may  ledger.Ended
	}{
		{replayVerb, MoveRequest{Selection: Selection{Agent: "1:1"}}, open, ledger.Ended{}},
		{replayVerb, MoveRequest{Selection: Selection{Agent: "1:1"}, Force: true}, open, ledger.Ended{}},
		{replayVerb, MoveRequest{Selection: Selection{Reason: "operator"}}, all, ledger.Ended{Cancelled: true}},
		{replayVerb, MoveRequest{Selection: Selection{Status: "cancelled"}}, statuses{outcome.Cancelled}, ledger.Ended{Cancelled: true}},
		{replayVerb, MoveRequest{Selection: Selection{Status: "delivered"}, Force: true}, statuses{outcome.Delivered}, ledger.Ended{Delivered: true}},
		{replayVerb, MoveRequest{Selection: Selection{Status: "dead"}, Force: true}, statuses{outcome.Dead}, ledger.Ended{}},
		{replayVerb, MoveRequest{Selection: Selection{Reason: "filtered"}, Force: true}, all, ledger.Ended{Filtered: true, Cancelled: true}},
		{replayVerb, MoveRequest{Selection: Selection{Status: "skipped"}, Force: true}, statuses{outcome.Skipped}, ledger.Ended{}},
		{replayVerb, MoveRequest{Selection: Selection{Status: "skipped", Reason: "filtered"}, Force: true}, statuses{outcome.Skipped}, ledger.Ended{Filtered: true}},
		{replayVerb, MoveRequest{Selection: Selection{Status: "skipped", Reason: "no_uri"}, Force: true}, statuses{outcome.Skipped}, ledger.Ended{}},
		{replayVerb, MoveRequest{IDs: []string{oneID}}, open, ledger.Ended{Cancelled: true}},
		{replayVerb, MoveRequest{IDs: []string{oneID}, Force: true}, open, ledger.Ended{Delivered: true, Filtered: true, Cancelled: true}},
		{cancelVerb, MoveRequest{Selection: Selection{Agent: "1:1"}}, cancellable, ledger.Ended{}},
		{cancelVerb, MoveRequest{Selection: Selection{Agent: "1:1"}, Force: true}, append(slices.Clone(cancellable), outcome.Running), ledger.Ended{}},
		{cancelVerb, MoveRequest{Selection: Selection{Status: "running"}, Force: true}, statuses{outcome.Running}, ledger.Ended{}},
	} {
		v := c.verb(c.ask)
		f, err := c.ask.checkMove(v, time.Now())
		heraldtest.Must(t, err)
		heraldtest.Equal(t, fmt.Sprintf("the statuses of %s %+v", v.name, c.ask), v.takenStatuses(f), c.take)
		heraldtest.Equal(t, fmt.Sprintf("ended ones of %s %+v", v.name, c.ask), c.ask.mayReplay(v, f), c.may)
	}
}

// TestNamesOptions: without a choice of deliveries, the error names every option that chooses some.
func TestNamesOptions(t *testing.T) {
	t.Parallel()
	_, err := MoveRequest{}.checkMove(replayVerb(MoveRequest{}), time.Now())
	var misuse *MisuseError
	if !errors.As(err, &misuse) {
		t.Fatal(err)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Selection]()) {
		option := "--" + strings.ToLower(regexp.MustCompile(`(.)([A-Z])`).ReplaceAllString(f.Name, "$1-$2"))
		if !regexp.MustCompile(option+`\b`).MatchString(misuse.Text) && f.Name != "Reorged" { // which only lists
			t.Errorf("%s lacks %s", misuse.Text, option)
		}
	}
}

// TestBlankChoice: options that are set to blank text, or to the time that programs use for none, choose no deliveries,
// and not all of them.
func TestBlankChoice(t *testing.T) {
	t.Parallel()
	for _, s := range []Selection{{Client: " "}, {Transaction: "\n"}, {Status: ","}, {Status: " "}, {Agent: " "}, {Reason: " "}, {Kind: " "}, {Since: " "},
		{Until: "0001-01-01T00:00:00Z"}} {
		for _, v := range []verb{replayVerb(MoveRequest{}), cancelVerb(MoveRequest{})} {
			f, err := MoveRequest{Selection: s, Yes: true}.checkMove(v, time.Now())
			if _, ok := errors.AsType[*MisuseError](err); !ok {
				t.Errorf("%s %+v selects %+v, %v", v.name, s, f, err)
			}
		}
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	for rate, want := range map[int]struct {
		size  int
		every time.Duration
	}{0: {maxBatch, 0}, 1: {1, time.Second}, 4: {1, 250 * time.Millisecond}, 50: {10, 200 * time.Millisecond}, 2500: {500, 200 * time.Millisecond}, 10000: {500, 50 * time.Millisecond}} {
		if size, every := divideRate(rate); size != want.size || every != want.every {
			t.Errorf("%d a second: %d each %s", rate, size, every)
		}
	}
}

// shelf is a ledger with rows in the order of acceptance.
type shelf struct {
	rows   []ledger.Delivery
	audits []records.Audit
	pages  int
	broken error // of BeginAudit
}

func newShelf(n int, statuses ...outcome.Status) *shelf {
	s := &shelf{}
	for i := range n {
		s.rows = append(s.rows, ledger.Delivery{ID: uuid.New(), Seq: int64(i + 1), Status: statuses[i%len(statuses)], Job: []byte("{}")})
	}
	return s
}

func (s *shelf) Deliveries(_ context.Context, f records.Filter) ([]ledger.Delivery, error) {
	s.pages++
	var out []ledger.Delivery
	for _, d := range slices.Backward(s.rows) {
		if d.Status == f.Statuses[0] && (f.Before == 0 || d.Seq < f.Before) && len(out) < f.Limit {
			out = append(out, d)
		}
	}
	return out, nil
}

func (s *shelf) Delivery(_ context.Context, id uuid.UUID) (ledger.Delivery, error) {
	for _, d := range s.rows {
		if d.ID == id {
			return d, nil
		}
	}
	return ledger.Delivery{}, ledger.ErrNotFound
}

func (s *shelf) Count(context.Context, records.Filter) (map[outcome.Status]int64, error) {
	return nil, errors.New("only a dry run counts")
}

func (s *shelf) BeginAudit(_ context.Context, a records.Audit) (int64, error) {
	if s.broken != nil {
		return 0, s.broken
	}
	a.State = "running"
	s.audits = append(s.audits, a)
	return int64(len(s.audits)), nil
}

func (s *shelf) EndAudit(ctx context.Context, id, moved int64, state, note string) error {
	a := &s.audits[id-1]
	a.Moved, a.State, a.Note = moved, state, note
	return ctx.Err()
}

// replay replays the selected deliveries on the shelf. move is the store's part of a batch.
func (s *shelf) replay(ctx context.Context, t testing.TB, r MoveRequest, move func(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]string, error)) (*MoveReport, error) {
	t.Helper()
	v := replayVerb(r)
	f, err := r.checkMove(v, time.Now())
	heraldtest.Must(t, err)
	ids := make([]uuid.UUID, len(r.IDs))
	for i, id := range r.IDs {
		ids[i] = uuid.MustParse(id)
	}
	v.move = func(ctx context.Context, ids []uuid.UUID) (int, map[uuid.UUID]string, error) {
		left, err := move(ctx, ids)
		if err != nil {
			return 0, nil, err
		}
		return len(ids) - len(left), left, nil
	}
	return r.runMove(ctx, s, v, ids, f)
}

var allDead = MoveRequest{Selection: Selection{Status: "dead"}, Yes: true, Rate: 50, Actor: "me"}

// Batches keep the rate, from the first to the last, and go through the ids oldest first.
func TestMoveKeepsTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(105, outcome.Dead)
		began, at := time.Now(), []time.Duration{}
		var got, want []uuid.UUID
		out, err := s.replay(t.Context(), t, allDead, func(_ context.Context, ids []uuid.UUID) (map[uuid.UUID]string, error) {
			got, at = append(got, ids...), append(at, time.Since(began))
			return nil, nil
		})
		if err != nil || out.Matched != 105 || out.Moved != 105 || out.Audit != 1 || out.Done != "queued anew" {
			t.Errorf("%+v, %v", out, err)
		}
		for i, when := range at {
			heraldtest.Equal(t, fmt.Sprint("batch ", i), when, time.Duration(i)*200*time.Millisecond)
		}
		for _, d := range s.rows {
			want = append(want, d.ID)
		}
		heraldtest.Equal(t, "the order", got, want)
		heraldtest.Equal(t, "the audit", s.audits[0], records.Audit{Action: "replay", State: "done", Matched: 105, Moved: 105,
			Actor: "me", Filter: []byte(`{"status":"dead","was":{"dead":105}}`)})
	})
}

// A signal ends it between two batches: the one that runs is finished, what was done is told, and the audit says cancelled.
func TestMoveStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(100, outcome.Dead)
		why := errors.New("interrupt signal received")
		ctx, stop := context.WithCancelCause(t.Context())
		n := 0
		out, err := s.replay(ctx, t, allDead, func(ctx context.Context, _ []uuid.UUID) (map[uuid.UUID]string, error) {
			if n++; n == 2 {
				stop(why)
			}
			return nil, ctx.Err() // the signal cuts no batch off
		})
		if !errors.Is(err, why) || n != 2 || !strings.Contains(err.Error(), "stopped after 20 of 100") || !strings.Contains(err.Error(), "run the same command again for the rest") {
			t.Errorf("%d batches, %v", n, err)
		}
		if a := s.audits[0]; out.State != "cancelled" || out.Moved != 20 || a.State != "cancelled" || a.Moved != 20 || !strings.Contains(a.Note, "stopped after 20 of 100") {
			t.Errorf("%+v, %+v", out, a)
		}
	})
}

// If a replay of delivered deliveries ends early, the same command calls agents again that have had their second call.
// The error says so, and names the rest.
func TestStoppedRepeatNamesTheRest(t *testing.T) {
	t.Parallel()
	s := newShelf(maxBatch+1, outcome.Delivered)
	var named []string
	for i := range s.rows {
		s.rows[i].CreatedAt = time.Date(2026, 3, 4, 5, 6, 0, i*1000, time.UTC)
		named = append(named, s.rows[i].ID.String())
	}
	for want, ask := range map[string]MoveRequest{
		"the same command calls the agents of the first 40 again; with --since 2026-03-04T05:06:00.00004Z, when the next one " +
			"was accepted, it leaves out those accepted before": {Selection: Selection{Status: "delivered"}, Yes: true, Rate: 200},
		"name only those from " + named[maxBatch] + " on": {IDs: named},
	} {
		ask.Force = true
		ctx, stop := context.WithCancel(t.Context())
		_, err := s.replay(ctx, t, ask, func(context.Context, []uuid.UUID) (map[uuid.UUID]string, error) {
			stop()
			return nil, nil
		})
		heraldtest.Fails(t, "the replay", err, context.Canceled, want)
	}
}

func TestMoveFails(t *testing.T) {
	t.Parallel()
	fault, quick, n := errors.New("Postgres is away"), allDead, 0
	quick.Rate = 0
	s := newShelf(1200, outcome.Dead)
	out, err := s.replay(t.Context(), t, quick, func(context.Context, []uuid.UUID) (map[uuid.UUID]string, error) {
		if n++; n == 3 {
			return nil, fault
		}
		return nil, nil
	})
	var left *LeftError
	if a := s.audits[0]; !errors.Is(err, fault) || errors.As(err, &left) || out.Moved != 1000 || a.State != "failed" || a.Moved != 1000 ||
		!strings.Contains(a.Note, "after 1000 of 1200: Postgres is away") {
		t.Errorf("%+v, %v, %+v", out, err, a)
	}

	s = newShelf(1, outcome.Dead)
	s.broken = fault
	if _, err := s.replay(t.Context(), t, allDead, func(context.Context, []uuid.UUID) (map[uuid.UUID]string, error) {
		t.Error("moved without an audit row")
		return nil, nil
	}); !errors.Is(err, fault) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("%v", err)
	}

	s = newShelf(4, outcome.Dead) // one of them cannot be moved
	out, err = s.replay(t.Context(), t, allDead, func(context.Context, []uuid.UUID) (map[uuid.UUID]string, error) {
		return map[uuid.UUID]string{s.rows[1].ID: "its job is gone"}, nil
	})
	if a := s.audits[0]; !errors.As(err, &left) || len(out.Left) != 1 || out.Left[0] != (LeftDelivery{s.rows[1].ID, "its job is gone"}) ||
		a.State != "done" || a.Moved != 3 || a.Note != "1 left: its job is gone" {
		t.Errorf("%+v, %v, %+v", out, err, a)
	}
}

// All pages of every status are walked; a row that changes its status meanwhile is taken once.
func TestChoose(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	for i := range 2*pageRows + 10 {
		status := []outcome.Status{outcome.Dead, outcome.Delivered, outcome.Held, outcome.Dead}[i%4]
		s.rows = append(s.rows, ledger.Delivery{ID: uuid.New(), Seq: int64(i + 1), Status: status})
	}
	ids, was, err := listIDs(t.Context(), s, records.Filter{}, []outcome.Status{outcome.Dead, outcome.Held, outcome.Dead})
	var want []uuid.UUID
	for _, d := range s.rows {
		if d.Status != outcome.Delivered {
			want = append(want, d.ID)
		}
	}
	if err != nil || !slices.Equal(ids, want) || s.pages < 4 || was["dead"]+was["held"] != len(ids) {
		t.Errorf("%d of %d after %d pages, %v", len(ids), len(want), s.pages, err)
	}
}
