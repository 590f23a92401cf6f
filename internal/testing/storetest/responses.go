package storetest

import (
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
)

func responseTo(client byte, index int, log uint) job.Job {
	j := feedbackBy(client, index)
	j.Kind, j.Responder, j.LogIndex = job.KindResponseAppended, common.HexToAddress("0x77"), &log
	return j
}

// OrderResponsesAfterFeedback checks that responses wait for their feedback only, and delay no feedback.
func (s *suite) OrderResponsesAfterFeedback() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), responseTo(1, 1, 1), responseTo(1, 1, 2), responseTo(1, 1, 3), feedbackBy(1, 2)), feedbackBy(1, 1))
	s.expectBehind(responseTo(1, 1, 1), responseTo(1, 1, 2), responseTo(1, 1, 3), feedbackBy(1, 2))
	s.expectDispatched(s.acceptJobs(responseTo(2, 1, 1)), responseTo(2, 1, 1)) // its feedback is unknown
	tasks = s.toRun(s.record(s.claim(tasks[0]), delivered).Next, 0)
	s.require(len(tasks) == 2, "dispatched %+v", tasks) // the next feedback, and one response beside that of the other client
	for ; len(tasks) > 0; tasks = tasks[1:] {
		tasks = append(tasks, s.record(s.claim(tasks[0]), delivered).Next...)
	}
	for _, j := range []job.Job{feedbackBy(1, 2), responseTo(1, 1, 1), responseTo(1, 1, 2), responseTo(1, 1, 3)} {
		s.is(j.ID(), outcome.Delivered, "", 1, 1)
	}
}

// OrderResponsesUseTwoSlots checks that at most two responses of a stranger are dispatched at a time, and that all of them
// are delivered.
func (s *suite) OrderResponsesUseTwoSlots() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1)), feedbackBy(1, 1))
	s.record(s.claim(tasks[0]), delivered)
	var batch, all []job.Job
	for log := range uint(20) {
		batch = append(batch, responseTo(1, 1, log))
		all = append(all, responseTo(1, 1, log), responseTo(1, 1, 100+log))
	}
	slow := s.acceptJobs(batch...)
	for log := range uint(20) {
		slow = append(slow, s.acceptJobs(responseTo(1, 1, 100+log))...)
	}
	s.require(len(slow) == 2, "%d responses are dispatched", len(slow))
	tasks = s.acceptJobs(feedbackBy(1, 2), feedbackBy(1, 3), feedbackBy(2, 1), feedbackBy(3, 1), feedbackBy(4, 1), feedbackBy(5, 1), feedbackBy(6, 1), feedbackBy(7, 1))
	s.require(len(tasks) == ledger.MaxDispatchedPerAgent-2, "%d feedbacks are dispatched", len(tasks))
	waits := s.record(s.claim(slow[0]), failed(time.Minute))
	for running := append(waits.Next, append(tasks, slow[1])...); len(running) > 0; running = running[1:] {
		running = append(running, s.record(s.claim(running[0]), delivered).Next...)
		responses := 0
		for _, j := range all {
			if d := s.read(j.ID()); d.Status == outcome.Running || d.Status == outcome.Queued && d.Dispatch > 0 {
				responses++
			}
		}
		s.require(responses <= 2, "%d responses are dispatched", responses)
	}
	s.Advance(time.Minute)
	s.record(s.claim(*waits.Task), delivered)
	for _, j := range all {
		d := s.read(j.ID())
		s.expect(d.Status == outcome.Delivered, "a response is %s %s", d.Status, d.Reason)
	}
}

// OrderResponsesTakeTurns checks that a response to a feedback with a high index is dispatched, although a stranger always has
// responses to another client's first feedback waiting.
func (s *suite) OrderResponsesTakeTurns() {
	running := s.acceptJobs(responseTo(1, 1, 1), responseTo(1, 1, 2))
	s.acceptJobs(responseTo(2, 9, 1))
	for log := range uint(4) {
		s.acceptJobs(responseTo(1, 1, 10+2*log), responseTo(1, 1, 11+2*log))
		running = append(running[1:], s.record(s.claim(running[0]), delivered).Next...)
	}
	s.is(responseTo(2, 9, 1).ID(), outcome.Delivered, "", 1, 1)
}

// OrderKnownResponsesUseNoSlot checks that an Accept dispatches two new responses, although it also has known ones, and one
// of the new ones twice.
func (s *suite) OrderKnownResponsesUseNoSlot() {
	one, two, three, four := responseTo(1, 1, 1), responseTo(1, 1, 2), responseTo(1, 1, 3), responseTo(1, 1, 4)
	for _, t := range s.expectDispatched(s.acceptJobs(one, two), one, two) {
		s.record(s.claim(t), delivered)
	}
	s.expectDispatched(s.acceptJobs(one, two, three, three, four), three, four)
}

// OrderEqualPositions checks that deliveries with the same index (order_seq) are called in the order of their acceptance,
// which is the order of their logs. The responses to one feedback have the same index. So do a validator's validations
// in one block.
func (s *suite) OrderEqualPositions() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1)), feedbackBy(1, 1))
	var responses, validations []job.Job
	for log := range uint(9) {
		j := feedbackBy(1, 1)
		j.Kind, j.ValidationRegistry, j.RequestHash, j.LogIndex = job.KindValidationResponse, common.Address{7}, common.Hash{byte(log)}, &log
		responses, validations = append(responses, responseTo(1, 1, log)), append(validations, j)
	}
	s.expectDispatched(s.acceptJobs(responses...))
	next := s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, responses[:2]...)
	for _, j := range responses[2:] {
		next = append(next[1:], s.expectDispatched(s.record(s.claim(next[0]), delivered).Next, j)...)
	}
	next = s.expectDispatched(s.acceptJobs(validations...), validations[0])
	for _, j := range validations[1:] {
		next = s.expectDispatched(s.record(s.claim(next[0]), delivered).Next, j)
	}
}
