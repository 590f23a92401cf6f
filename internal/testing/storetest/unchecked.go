package storetest

import (
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
)

// OrderReleasedByACheck checks that deliveries whose event is not confirmed yet delay a checked feedback of their client for
// seconds only: a revocation that was released before the feedback, and an earlier feedback that was in the backlog
// when the feedback had to wait.
func (s *suite) OrderReleasedByACheck() {
	s.verify()
	tasks := s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2))
	first, second := s.bindEvent(s.claim(tasks[0])), s.bindEvent(s.claim(tasks[1]))
	s.expectDispatched(s.record(second, noTurn).Next)
	s.expectDispatched(s.acceptJobs(revocationOf(1, 1)))
	tasks = s.expectDispatched(s.record(first, delivered).Next, revocationOf(1, 1))
	tasks = s.expectDispatched(s.record(s.claim(tasks[0]), pending).Next, feedbackBy(1, 2))
	s.record(s.claim(tasks[0]), delivered)

	jobs := []job.Job{feedbackBy(2, 2)}
	for client := range byte(ledger.MaxDispatchedPerAgent - 1) {
		jobs = append(jobs, feedbackBy(3+client, 1))
	}
	tasks = s.expectDispatched(s.acceptJobs(jobs...), jobs...)
	s.expectDispatched(s.acceptJobs(feedbackBy(2, 1)))
	second = s.bindEvent(s.claim(tasks[0]))
	s.expectDispatched(s.record(second, noTurn).Next)
	tasks = s.expectDispatched(s.dispatchBacklog(), feedbackBy(2, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), pending).Next)
	s.Advance(31 * time.Second)
	s.expectDispatched(s.dispatchDue(), feedbackBy(2, 2))
}
