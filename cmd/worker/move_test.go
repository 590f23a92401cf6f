package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store"
	"github.com/alecthomas/kong"
	"github.com/google/uuid"
)

// parse parses a command line without running it.
func parse(t testing.TB, args ...string) *commands {
	t.Helper()
	var c commands
	k, err := kong.New(&c)
	if err == nil {
		_, err = k.Parse(args)
	}
	if err != nil {
		t.Fatal(err)
	}
	return &c
}

// shelf is a ledger with rows in the order of acceptance.
type shelf struct {
	rows   []store.Delivery
	audits []store.Audit
	pages  int
	broken error // returned by the begin of the audit
}

func newShelf(n int, statuses ...store.Status) *shelf {
	s := &shelf{}
	for i := range n {
		s.rows = append(s.rows, store.Delivery{ID: uuid.New(), Seq: int64(i + 1), Status: statuses[i%len(statuses)]})
	}
	return s
}

func (s *shelf) Deliveries(_ context.Context, f store.Filter) ([]store.Delivery, error) {
	s.pages++
	var out []store.Delivery
	for _, d := range slices.Backward(s.rows) {
		if d.Status == f.Status && (f.Before == 0 || d.Seq < f.Before) && len(out) < f.Limit {
			out = append(out, d)
		}
	}
	return out, nil
}

func (s *shelf) Delivery(_ context.Context, id uuid.UUID) (store.Delivery, error) {
	for _, d := range s.rows {
		if d.ID == id {
			return d, nil
		}
	}
	return store.Delivery{}, store.ErrNotFound
}

func (s *shelf) Count(context.Context, store.Filter) (map[store.Status]int64, error) {
	n := map[store.Status]int64{store.Queued: 0}
	for _, d := range s.rows {
		n[d.Status]++
	}
	return n, nil
}

func (s *shelf) BeginAudit(_ context.Context, a store.Audit) (int64, error) {
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

// moveFunc acts as the store's move.
type moveFunc func(ctx context.Context, ids []uuid.UUID) (int, map[uuid.UUID]string, error)

// opened is a backend whose store is a shelf, and which moves rows with move.
type opened struct {
	operator.Backend
	*shelf
	move moveFunc
}

// moving is the store of an opened backend. Its Replay calls move.
type moving struct {
	rest
	*shelf
	move moveFunc
}

// rest is an empty Store. Moves do not call its methods.
type rest struct{ operator.Store }

func (m moving) Replay(ctx context.Context, ids []uuid.UUID, _ bool) (int, map[uuid.UUID]string, []store.Task, error) {
	n, left, err := m.move(ctx, ids)
	return n, left, nil, err
}

func (b opened) OpenStore(context.Context, operator.StoreOptions) (*operator.Session, error) {
	return &operator.Session{Store: moving{shelf: b.shelf, move: b.move}, Close: func() {}}, nil
}

// moved runs a command on a shelf.
func (s *shelf) moved(ctx context.Context, t testing.TB, line string, move moveFunc) (out string, err error) {
	t.Helper()
	c := parse(t, strings.Fields(line)...).Delivery.Replay
	var b bytes.Buffer
	err = c.Run(&app{ctx: ctx, out: &b, err: io.Discard, log: slog.New(slog.DiscardHandler), backend: opened{shelf: s, move: move}})
	return b.String(), err
}

// TestMoveKeepsTheRate checks that batches keep the rate, and that they process the ids from the oldest to the newest.
func TestMoveKeepsTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(105, store.Dead)
		began, at := time.Now(), []time.Duration{}
		var got []uuid.UUID
		out, err := s.moved(t.Context(), t, "delivery replay --status dead --yes --rate 50", func(_ context.Context, ids []uuid.UUID) (int, map[uuid.UUID]string, error) {
			got, at = append(got, ids...), append(at, time.Since(began))
			return len(ids), nil, nil
		})
		if err != nil || out != "105 of 105 queued anew (audit 1)\n" {
			t.Errorf("%q, %v", out, err)
		}
		for i, when := range at {
			if want := time.Duration(i) * 200 * time.Millisecond; when != want {
				t.Errorf("batch %d after %s, want %s", i, when, want)
			}
		}
		for i, d := range s.rows {
			if got[i] != d.ID {
				t.Fatalf("position %d: not the next oldest", i)
			}
		}
		if a := s.audits[0]; a.Action != "replay" || a.State != "done" || a.Matched != 105 || a.Moved != 105 || string(a.Filter) != `{"status":"dead","was":{"dead":105}}` || a.Actor == "" {
			t.Errorf("%+v", a)
		}
	})
}

// TestMoveStops checks that a signal stops a move after the current batch. The output contains the rows moved so far,
// and the audit records "cancelled".
func TestMoveStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(100, store.Dead)
		why := errors.New("interrupt signal received")
		ctx, stop := context.WithCancelCause(t.Context())
		n := 0
		out, err := s.moved(ctx, t, "delivery replay --status dead --yes --rate 50 --json", func(ctx context.Context, ids []uuid.UUID) (int, map[uuid.UUID]string, error) {
			if n++; n == 2 {
				stop(why)
			}
			if ctx.Err() != nil {
				t.Error("the signal cuts a batch off")
			}
			return len(ids), nil, nil
		})
		if !errors.Is(err, why) || n != 2 || !strings.Contains(err.Error(), "stopped after 20 of 100") || !strings.Contains(err.Error(), "the same command takes up the rest") {
			t.Errorf("%d batches, %v", n, err)
		}
		var r operator.MoveReport
		if e := json.Unmarshal([]byte(out), &r); e != nil || r.State != "cancelled" || r.Moved != 20 || r.Matched != 100 || r.Audit != 1 {
			t.Errorf("%v %s", e, out)
		}
		if a := s.audits[0]; a.State != "cancelled" || a.Moved != 20 || !strings.Contains(a.Note, "stopped after 20 of 100") {
			t.Errorf("%+v", a)
		}
	})
}

func TestMoveFails(t *testing.T) {
	t.Parallel()
	fault := errors.New("Postgres is away")
	s := newShelf(1200, store.Dead)
	n := 0
	out, err := s.moved(t.Context(), t, "delivery replay --status dead --yes --rate 0", func(_ context.Context, ids []uuid.UUID) (int, map[uuid.UUID]string, error) {
		if n++; n == 3 {
			return 0, nil, fault
		}
		return len(ids), nil, nil
	})
	var left *operator.LeftError
	if !errors.Is(err, fault) || errors.As(err, &left) || out != "1000 of 1200 queued anew (audit 1)\n" {
		t.Errorf("%q, %v", out, err)
	}
	if a := s.audits[0]; a.State != "failed" || a.Moved != 1000 || !strings.Contains(a.Note, "after 1000 of 1200: Postgres is away") {
		t.Errorf("%+v", a)
	}

	s = newShelf(1, store.Dead)
	s.broken = fault
	if _, err := s.moved(t.Context(), t, "delivery replay --status dead --yes", func(context.Context, []uuid.UUID) (int, map[uuid.UUID]string, error) {
		t.Error("moved without an audit row")
		return 0, nil, nil
	}); !errors.Is(err, fault) || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("%v", err)
	}
}

// TestMoveLeaves checks that rows that could not be moved are listed with a sanitized reason, and that the error leads
// to exit code 3.
func TestMoveLeaves(t *testing.T) {
	t.Parallel()
	s := newShelf(4, store.Dead)
	odd := s.rows[1].ID
	out, err := s.moved(t.Context(), t, "delivery replay --status dead --yes", func(_ context.Context, ids []uuid.UUID) (int, map[uuid.UUID]string, error) {
		if slices.Contains(ids, odd) {
			return len(ids) - 1, map[uuid.UUID]string{odd: "its job is gone\x1b[2J"}, nil
		}
		return len(ids), nil, nil
	})
	var left *operator.LeftError
	if !errors.As(err, &left) || out != fmt.Sprintf("left %s  its job is gone·[2J\n3 of 4 queued anew (audit 1)\n", odd) {
		t.Errorf("%q, %v", out, err)
	}
	if s.audits[0].State != "done" || s.audits[0].Moved != 3 {
		t.Errorf("%+v", s.audits[0])
	}
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	s := newShelf(70, store.Dead, store.Delivered, store.Held, store.Cancelled, store.Running, store.Dead, store.Dead)
	never := func(context.Context, []uuid.UUID) (int, map[uuid.UUID]string, error) {
		t.Error("a dry run moves")
		return 0, nil, nil
	}
	for _, line := range []string{"delivery replay --agent 1:1", "delivery replay --agent 1:1 --dry-run"} {
		out, err := s.moved(t.Context(), t, line, never)
		for _, want := range []string{"30 dead", "10 held", "not moved: 10 cancelled (only with --status cancelled)", "not moved: 10 delivered (with --force they are delivered a second time)",
			"not moved: 10 running (they are on their way)", "40 would be queued anew, 50 a second, in about 1s. Nothing was changed: the same command with --yes does it."} {
			if err != nil || !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
				t.Errorf("%s lacks %q: %v\n%s", line, want, err, out)
			}
		}
	}
	out, err := s.moved(t.Context(), t, "delivery replay --agent 1:1 --json", never)
	var r operator.MoveReport
	if e := json.Unmarshal([]byte(out), &r); err != nil || e != nil || !r.DryRun || r.Matched != 40 || r.ByStatus[store.Dead] != 30 || r.Untouched[store.Running] != 10 || r.Audit != 0 {
		t.Errorf("%v %v %s", err, e, out)
	}
	if out, err = newShelf(0).moved(t.Context(), t, "delivery replay --agent 1:1", never); err != nil || out != "no delivery matches that could be moved\n" {
		t.Errorf("%q, %v", out, err)
	}
	if len(s.audits) > 0 {
		t.Errorf("audited: %+v", s.audits)
	}
	// A move without matching rows is not audited.
	if out, err = s.moved(t.Context(), t, "delivery replay --status rejected --yes", never); err != nil || out != "no delivery matches\n" || len(s.audits) > 0 {
		t.Errorf("%q, %v", out, err)
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	var out strings.Builder
	p := &progress{w: &out, now: func() time.Time { return now }, began: now.Add(-2 * time.Second)}
	p.showProgress(100, 200, 3)
	p.showProgress(110, 200, 3) // too soon after the previous line
	want := "\r\x1b[K[" + strings.Repeat("=", 15) + strings.Repeat(" ", 15) + "] 100 of 200, 50/s, 3 left as they are"
	if out.String() != want {
		t.Errorf("%q", out.String())
	}
	p.clear()
	p.clear()
	if out.String() != want+"\r\x1b[K" {
		t.Errorf("%q", out.String())
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if p := newProgress(file); p.w != nil {
		t.Error("a file is no terminal")
	}
}
