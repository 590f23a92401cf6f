package operator

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

const oneID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"

func TestFilter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	chain := uint64(8453)
	for _, c := range []struct {
		in   Selection
		want store.Filter
	}{
		{Selection{}, store.Filter{}},
		{Selection{Agent: "8453:42"}, store.Filter{ChainID: &chain, AgentID: "42"}},
		{Selection{Status: "dead", Reason: "timeout", Kind: "NewFeedback"}, store.Filter{Status: store.Dead, Reason: "timeout", Kind: "NewFeedback"}},
		{Selection{Since: "24h", Until: "90m"}, store.Filter{Since: now.Add(-24 * time.Hour), Until: now.Add(-90 * time.Minute)}},
		{Selection{Since: "2026-01-31T12:00:00Z"}, store.Filter{Since: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)}},
	} {
		got, err := c.in.parseFilter(now)
		if err != nil {
			t.Errorf("%+v: %v", c.in, err)
		}
		heraldtest.Equal(t, fmt.Sprintf("the filter of %+v", c.in), got, c.want)
	}
	// The audit records absolute times, not relative ones.
	f, err := Selection{Agent: "8453:42", Status: "dead", Since: "1h"}.parseFilter(now)
	if got := string(mustMarshal(describeFilter(f))); err != nil || got != `{"agent":"8453:42","since":"2026-03-04T04:06:07Z","status":"dead"}` {
		t.Errorf("%s, %v", got, err)
	}
}

// TestWhatAFilterTakes checks that a filter without --status selects deliveries that may still need an action, and
// never delivered ones.
func TestWhatAFilterTakes(t *testing.T) {
	t.Parallel()
	open := []store.Status{store.Dead, store.Rejected, store.Skipped, store.Held, store.Waiting}
	for _, c := range []struct {
		verb func(MoveRequest) verb
		ask  MoveRequest
		want []store.Status
	}{
		{replayVerb, MoveRequest{Selection: Selection{Agent: "1:1"}}, open},
		{replayVerb, MoveRequest{Selection: Selection{Agent: "1:1"}, Force: true}, open},
		{replayVerb, MoveRequest{Selection: Selection{Reason: "operator"}}, append(slices.Clone(open), store.Cancelled)},
		{replayVerb, MoveRequest{Selection: Selection{Status: "cancelled"}}, []store.Status{store.Cancelled}},
		{replayVerb, MoveRequest{Selection: Selection{Status: "delivered"}, Force: true}, []store.Status{store.Delivered}},
		{cancelVerb, MoveRequest{Selection: Selection{Agent: "1:1"}}, []store.Status{store.Queued, store.Waiting, store.Held}},
		{cancelVerb, MoveRequest{Selection: Selection{Agent: "1:1"}, Force: true},
			[]store.Status{store.Queued, store.Waiting, store.Held, store.Running}},
		{cancelVerb, MoveRequest{Selection: Selection{Status: "running"}, Force: true}, []store.Status{store.Running}},
	} {
		v := c.verb(c.ask)
		_, f, err := c.ask.check(v, time.Now())
		if got := v.takenStatuses(f); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s %+v: %v, %v", v.name, c.ask, got, err)
		}
	}
}

func TestForceIsNotForWhatChanges(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ask  MoveRequest
		want bool
	}{
		{MoveRequest{Selection: Selection{Status: "dead"}, Force: true}, false},
		{MoveRequest{Selection: Selection{Agent: "1:1"}, Force: true}, false},
		{MoveRequest{Selection: Selection{Status: "delivered"}, Force: true}, true},
		{MoveRequest{IDs: []string{oneID}, Force: true}, true},
		{MoveRequest{IDs: []string{oneID}}, false},
	} {
		_, f, err := c.ask.check(replayVerb(c.ask), time.Now())
		if got := c.ask.mayDeliverAgain(f); err != nil || got != c.want {
			t.Errorf("%+v: %t, %v", c.ask, got, err)
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

func TestPolicy(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{"onUnknown=hold": "hold", "onUnknown=resend": "resend"} {
		if p, err := parsePolicy([]string{setting, setting}); err != nil || policyInForce(p).OnUnknown != want {
			t.Errorf("%s: %+v, %v", setting, p, err)
		}
	}
	for setting, want := range map[string]string{"preferences=ignore": "ignore", "preferences=follow": "follow"} {
		if p, err := parsePolicy([]string{setting, "onUnknown=hold"}); err != nil || FollowsPreferences(p) != want || policyInForce(p).OnUnknown != "hold" {
			t.Errorf("%s: %+v, %v", setting, p, err)
		}
	}
	if p, err := parsePolicy(nil); err != nil || FollowsPreferences(p) != "follow" {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := parsePolicy(nil); err != nil || p.OnUnknown != "" || policyInForce(p).OnUnknown != "resend" {
		t.Errorf("%+v, %v", p, err)
	}
}

// shelf is a ledger with rows in the order of acceptance.
type shelf struct {
	ledger
	rows  []store.Delivery
	pages int
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

// TestChoose checks that all pages of every status are read, and that a row whose status changes in between is
// returned once.
func TestChoose(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	for i := range 2*pageRows + 10 {
		status := []store.Status{store.Dead, store.Delivered, store.Held, store.Dead}[i%4]
		s.rows = append(s.rows, store.Delivery{ID: uuid.New(), Seq: int64(i + 1), Status: status})
	}
	ids, was, err := listIDs(t.Context(), s, store.Filter{}, []store.Status{store.Dead, store.Held, store.Dead})
	var want []uuid.UUID
	for _, d := range s.rows {
		if d.Status != store.Delivered {
			want = append(want, d.ID)
		}
	}
	if err != nil || !slices.Equal(ids, want) || s.pages < 4 || was["dead"]+was["held"] != len(ids) {
		t.Errorf("%d of %d after %d pages, %v", len(ids), len(want), s.pages, err)
	}
}
