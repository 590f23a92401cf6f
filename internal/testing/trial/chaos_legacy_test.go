//go:build chaos

package trial

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestChaosLegacyQueue: the old backend feeds its list while workers that read it are killed 50 times. Each job becomes
// one delivery, and nothing stays in Redis.
func TestChaosLegacyQueue(t *testing.T) {
	const (
		kills = 50
		each  = 150 // jobs pushed before a kill
		// forgotten is how long the jobs of a dead worker may remain. The worker must first count as dead.
		forgotten = time.Minute
	)
	r := newRow(t, "kill -9 under the old list", 60)
	r.agents.BehaveAll(Taking(0))
	r.hire(3, 14, "HERALD_LEGACY_QUEUE="+LegacyList, "HERALD_REDIS_INTAKE=on")
	rdb := r.Redis.Client()
	depth := func() int64 {
		n, err := rdb.LLen(r.ctx, LegacyList).Result()
		r.must(err)
		return n
	}
	// isRead reports whether a worker is reading jobs: the time until its id expires was set a moment ago. It may have
	// committed the jobs already.
	isRead := func() bool {
		return depth() > 0 && rdb.PTTL(r.ctx, "{"+LegacyList+"}:reader").Val() > 4900*time.Millisecond
	}
	leftBehind, met := 0, 0
	for i := range kills {
		var ids []uuid.UUID
		push := rdb.Pipeline()
		for range each {
			line, id, err := r.agents.OldJob(r.serial%r.agents.Len(), r.serial)
			r.must(err)
			push.LPush(r.ctx, LegacyList, line)
			ids = append(ids, id)
			r.serial++
		}
		_, err := push.Exec(r.ctx)
		r.must(err)
		r.remember(ids)
		w := r.workers[i%len(r.workers)]
		// One of the workers reads jobs. Which one, and how far it is, differs from kill to kill.
		r.must(Until(r.within(time.Minute), time.Millisecond, "a worker to take jobs", func() (bool, error) {
			return isRead() || depth() == 0, nil
		}))
		before := isRead()
		r.must(w.Kill())
		if before {
			met++
		}
		if depth() > 0 {
			leftBehind++
		}
		r.must(w.Start())
	}
	r.allReady()
	r.must(Until(r.within(forgotten), pollSlow, "the list to be empty", func() (bool, error) { return depth() == 0, nil }))
	r.must(Until(r.within(time.Minute), pollSlow, "every job to be in Postgres", func() (bool, error) {
		rows, err := r.Rows(r.ctx)
		return len(rows) >= len(r.accepted), err
	}))
	v := r.settle(2 * time.Minute)
	r.figures.Add("kills", kills).Add("kills_while_jobs_were_read", met).Add("kills_that_left_jobs", leftBehind).
		Add("overlaps", v.calls.Overlaps())
	r.print()
	if met < kills/5 || leftBehind == 0 {
		t.Errorf("%d kills met jobs that were read, and %d left jobs behind: the row tried too little", met, leftBehind)
	}
}
