package records_test

import (
	"math"
	"testing"

	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// TestWorkers: a worker is listed with its last record until it is removed or silent for WorkerGone. Records of a day
// ago are deleted.
func TestWorkers(t *testing.T) {
	t.Parallel()
	s, ctx := newStore(t), t.Context()
	a := records.Worker{ID: uuid.New(), Host: "a", Keys: []uint32{1, math.MaxUint32}, SealsWith: math.MaxUint32}
	b := records.Worker{ID: uuid.New(), Host: "b", Keys: []uint32{}}
	list := func(want ...records.Worker) {
		t.Helper()
		got, err := s.Workers(ctx)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the running workers", got, want)
	}
	report := func(w records.Worker) {
		t.Helper()
		heraldtest.Must(t, s.ReportWorker(ctx, w))
	}
	report(b)
	report(records.Worker{ID: a.ID, Host: "before", Keys: []uint32{7}})
	report(a)
	list(a, b)
	if !a.HasKey(math.MaxUint32) || a.HasKey(7) {
		t.Errorf("the keys of %+v", a)
	}
	exec(t, s, `UPDATE herald.workers SET seen_at = now() - interval '25 hours' WHERE id = $1`, b.ID)
	list(a)
	report(a)
	heraldtest.Equal(t, "records", value[int64](t, s, `SELECT count(*) FROM herald.workers`), 1)
	heraldtest.Must(t, s.RemoveWorker(ctx, a.ID))
	list()
}
