//go:build chaos

package trial

import (
	"math"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/queue"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// TestChaosForgedTasks puts forged and stale tasks into Redis (an old n, an unknown id, the right n before its time or
// for a delivery in flight), and moves the times of waits by ten minutes. Claims refuse them, and no delivery is called
// before it is due.
func TestChaosForgedTasks(t *testing.T) {
	const (
		each  = 16 // as many newcomers as one worker of 32 slots calls at a time, because one worker may receive all of them
		pause = 30 * time.Second
		moved = 10 * time.Minute
	)
	r := newRow(t, "forged and stale tasks", 3*each)
	r.grownUp()
	for i := range each {
		r.agents.Behave(i, Taking(0))
		r.agents.Behave(each+i, First(1, Act{How: Refuse, Status: 503, RetryAfter: pause}))
		r.agents.Behave(2*each+i, Taking(1700*time.Millisecond))
	}
	r.hire(2, 32)
	done := r.enqueue(each, span(0, each)...)
	waiting := r.enqueue(each, span(each, 2*each)...)
	r.awaitRows(20*time.Second, "the first deliveries to end", func(row Row) bool { return row.Status == "delivered" }, done...)
	r.awaitRows(20*time.Second, "the second deliveries to wait", func(row Row) bool { return row.Status == "waiting" }, waiting...)
	running := r.enqueue(each, span(2*each, 3*each)...)
	r.underWay(3*each, each)

	q, err := queue.Open(queue.Config{URL: secret.New(r.Redis.URL())})
	r.must(err)
	t.Cleanup(func() { _ = q.Close() })
	forged := 0
	forge := func(id uuid.UUID, ns ...int) {
		t.Helper()
		for _, n := range ns {
			// The forged tasks use other lanes than the true ones, because asynq refuses an id that exists in the same
			// lane.
			for _, lane := range []queue.Lane{queue.Bulk, queue.Upkeep} {
				r.must(q.Enqueue(r.ctx, queue.Task{DeliveryID: id, N: n, Kind: "NewFeedback", Lane: lane}))
				forged++
			}
		}
	}
	rows, err := r.Rows(r.ctx)
	r.must(err)
	for i := range each {
		forge(done[i], rows[done[i]].Dispatch-1, rows[done[i]].Dispatch, rows[done[i]].Dispatch+1)
		forge(waiting[i], rows[waiting[i]].Dispatch-1, rows[waiting[i]].Dispatch, rows[waiting[i]].Dispatch+1)
		forge(running[i], rows[running[i]].Dispatch-1, rows[running[i]].Dispatch, rows[running[i]].Dispatch+1)
		forge(uuid.New(), -1, 0, 1, math.MaxInt32, math.MaxInt32+1)
	}
	early, late := r.move(moved)
	r.must(Until(r.within(time.Minute), pollSlow, "the forged tasks to be taken", func() (bool, error) {
		lanes, err := q.Lanes(r.ctx)
		for _, lane := range []queue.Lane{queue.Bulk, queue.Upkeep} {
			for _, state := range []string{"pending", "active", "scheduled"} {
				if lanes[lane][state] > 0 {
					return false, err
				}
			}
			if lanes[lane]["retry"] > each { // a forged task with the right n waits until its time
				return false, err
			}
		}
		return lanes != nil, err
	}))
	v := r.settle(2 * time.Minute)
	calls := v.calls.ByDelivery()
	unknown, early2, twice := 0, 0, 0
	var slowest time.Duration
	known := map[uuid.UUID]bool{}
	for _, id := range r.accepted {
		known[id] = true
	}
	for id, of := range calls {
		if !known[id] {
			unknown += len(of)
		}
	}
	for _, id := range append(append([]uuid.UUID{}, done...), running...) {
		twice += len(calls[id]) - 1
	}
	for _, id := range waiting {
		twice += max(len(calls[id])-2, 0)
		if len(calls[id]) < 2 {
			continue // settle has reported it
		}
		waited := calls[id][1].Begun.Sub(calls[id][0].Ended)
		slowest = max(slowest, waited)
		// Claims tolerate a clock difference of one second.
		if waited < pause-time.Second {
			early2++
		}
	}
	r.figures.Add("forged", forged).Add("moved_early", early).Add("moved_late", late).Add("calls_for_unknown", unknown).
		Add("called_twice", twice).Add("called_early", early2).Add("slowest_wait", slowest).Add("overlaps", v.calls.Overlaps())
	r.print()
	if unknown+twice+early2 > 0 {
		t.Errorf("%d calls for unknown deliveries, %d too many, %d before their time", unknown, twice, early2)
	}
	if early == 0 || late == 0 {
		t.Errorf("%d waits were moved forward and %d back: want some of each", early, late)
	}
	if slowest > pause+time.Minute {
		t.Errorf("a wait of %s took %s", pause, slowest)
	}
}

// move makes every other waiting task due long ago, and the rest due much later.
func (r *row) move(by time.Duration) (early, late int) {
	r.Helper()
	const waits = "asynq:{retry}:retry"
	rdb := r.Redis.Client()
	tasks, err := rdb.ZRangeWithScores(r.ctx, waits, 0, -1).Result()
	r.must(err)
	for i, task := range tasks {
		to := task.Score - by.Seconds()
		if i%2 == 1 {
			to = task.Score + by.Seconds()
			late++
		} else {
			early++
		}
		r.must(rdb.ZAddXX(r.ctx, waits, redis.Z{Score: to, Member: task.Member}).Err())
	}
	return early, late
}
