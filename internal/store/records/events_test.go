package records_test

import (
	"fmt"
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
)

// awaitEvents returns the events after start once there are n.
func awaitEvents(t *testing.T, s storetest.Postgres, start records.EventCursor, n int) (got []records.DeliveryEvent) {
	t.Helper()
	heraldtest.Await(t, "events", func() bool {
		var err error
		got, err = s.EventsAfter(t.Context(), start, 10)
		heraldtest.Must(t, err)
		return len(got) >= n
	})
	return got
}

// TestEventsInOrder: an event whose transaction commits late delays the later events, so that readers miss none.
func TestEventsInOrder(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 3)...)
	start, err := s.LastEvent(t.Context())
	heraldtest.Must(t, err)
	const sql = `UPDATE herald.deliveries SET status = 'cancelled', reason = 'operator', finished_at = now() WHERE id = $1`
	commit := holdOpen(t, s, sql, tasks[0].ID)
	exec(t, s, sql, tasks[1].ID)
	heraldtest.Equal(t, "events while an older transaction is open", fmt.Sprint(s.EventsAfter(t.Context(), start, 10)), "[] <nil>")
	commit()
	// Transactions of the cluster's other databases can delay events, too.
	got := awaitEvents(t, s, start, 2)
	if len(got) != 2 || got[0].DeliveryID != tasks[0].ID || got[1].DeliveryID != tasks[1].ID {
		t.Fatalf("%+v", got)
	}
	if e := got[0]; e.Status != outcome.Cancelled || e.Reason != "operator" || e.ChainID != 8453 || e.AgentID != "1" || e.Kind != "NewFeedback" {
		t.Errorf("%+v", e)
	}
	if again, err := s.EventsAfter(t.Context(), got[0].Cursor, 10); err != nil || len(again) != 1 || again[0].Cursor != got[1].Cursor {
		t.Errorf("%+v, %v", again, err)
	}
	// Claims and changes of other columns are no events.
	exec(t, s, `UPDATE herald.deliveries SET updated_at = now() WHERE id = $1`, tasks[1].ID)
	claim(t, s, tasks[2])
	heraldtest.Equal(t, "later events", fmt.Sprint(s.EventsAfter(t.Context(), got[1].Cursor, 10)), "[] <nil>")
}

// TestEventsOfCommittedStates: a transaction that changes a delivery twice reports only the state that it leaves behind:
// a hint that arrives during a check queues the delivery again in the transaction that records "not found".
func TestEventsOfCommittedStates(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	heraldtest.Must(t, s.ReportVerified(t.Context(), []uint64{8453}))
	job := feedback(1, 1)
	job.TransactionHash = common.Hash{1}
	_, tasks := accept(t, s, ledger.Intake{Job: job})
	c := claim(t, s, tasks[0])
	job.TransactionHash = common.Hash{2}
	accept(t, s, ledger.Intake{Job: job})
	start, err := s.LastEvent(t.Context())
	heraldtest.Must(t, err)
	if rec, err := s.Record(t.Context(), c, ledger.Outcome{Status: outcome.Rejected, Reason: "event_not_found", Stage: "check", Undecided: true}); err != nil || !rec.Rechecked {
		t.Fatalf("%+v, %v", rec, err)
	}
	if got := awaitEvents(t, s, start, 1); len(got) != 1 || got[0].Status != outcome.Queued {
		t.Errorf("%+v", got)
	}
}

// TestDropEvents: old events are deleted, and those of transactions that this cluster has not begun, as of a dump that
// was restored into another cluster. Otherwise the stream would send these again when it reaches their transaction ids.
func TestDropEvents(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 4)...)
	for _, task := range tasks {
		exec(t, s, `UPDATE herald.deliveries SET status = 'held', reason = 'agent_disabled' WHERE id = $1`, task.ID)
	}
	drops := func(counts ...int) {
		t.Helper()
		for _, want := range counts {
			heraldtest.Equal(t, "dropped", fmt.Sprint(retention.New(s.Pool).DropEvents(t.Context(), 1)), fmt.Sprint(want, " <nil>"))
		}
	}
	exec(t, s, `UPDATE herald.delivery_events SET xid = '1000000000000' WHERE delivery_id = $1`, tasks[0].ID)
	drops(1, 0)
	exec(t, s, `UPDATE herald.delivery_events SET at = now() - interval '73 hours' WHERE delivery_id <> $1`, tasks[3].ID)
	drops(1, 1, 0)
	left := value[int](t, s, `SELECT count(*)::int FROM herald.delivery_events WHERE delivery_id = $1`, tasks[3].ID)
	heraldtest.Equal(t, "recent events that are left", left, 1)
}

func TestEventCursor(t *testing.T) {
	t.Parallel()
	c := records.EventCursor{At: 12, Xid: 1 << 40, ID: 7}
	if got, err := records.ParseEventCursor(c.String()); err != nil || got != c {
		t.Errorf("%+v, %v", got, err)
	}
	for _, s := range []string{"", "1", "1.2", "1.2.3.4", "1.2.3 ", "a.b.c", "1.-2.3", "01.2.3"} {
		_, err := records.ParseEventCursor(s)
		heraldtest.Fails(t, s, err)
	}
}
