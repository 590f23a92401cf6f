package storetest

import (
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
)

// RunOrder runs the suite for stores that keep the order of each ordering key (docs/design/delivery.md).
func RunOrder(t *testing.T, open func(t *testing.T) (Store, Clock)) {
	runEach(t, open, "Order")
}

// feedbackBy returns a feedback of the given client.
func feedbackBy(client byte, index int) job.Job {
	j := Feedback(1, index)
	j.ClientAddress = common.BytesToAddress([]byte{client})
	return j
}

func revocationOf(client byte, index int) job.Job {
	j := feedbackBy(client, index)
	j.Kind, j.Reason = job.KindFeedbackRevoked, job.RevokedByClient
	return j
}

func (s *suite) acceptJobs(jobs ...job.Job) []ledger.Task {
	s.Helper()
	in := make([]ledger.Intake, len(jobs))
	for i, j := range jobs {
		in[i] = ledger.Intake{Job: j}
	}
	_, tasks := s.accept(in)
	return tasks
}

// expectDispatched checks which deliveries were dispatched, and returns their tasks.
func (s *suite) expectDispatched(tasks []ledger.Task, want ...job.Job) []ledger.Task {
	s.Helper()
	var got, ids []string
	for _, t := range tasks {
		if !t.Ended {
			got = append(got, s.read(t.ID).Key)
		}
	}
	for _, j := range want {
		ids = append(ids, j.Key())
	}
	slices.Sort(got)
	slices.Sort(ids)
	s.require(slices.Equal(got, ids), "dispatched %q, want %q", got, ids)
	return s.toRun(tasks, len(tasks))
}

// expectBehind checks that the deliveries wait for another one of their ordering key.
func (s *suite) expectBehind(jobs ...job.Job) {
	s.Helper()
	for _, j := range jobs {
		d := s.is(j.ID(), outcome.Waiting, outcome.BehindEarlier, 0, 0)
		s.expect(d.Error != "" && d.Dispatch == 0, "%+v", d)
	}
}

// bindEvent ends the check of a claimed delivery whose event is as its job describes it.
func (s *suite) bindEvent(c *ledger.Claim) *ledger.Claim {
	s.Helper()
	s.must(s.Bind(s.Context(), c, ledger.Binding{Job: c.Job, Source: c.Source}))
	return c
}

// OrderOneAtATime checks that the deliveries of one ordering key are dispatched one after the other, by their indexes,
// although one Accept had them in another order.
func (s *suite) OrderOneAtATime() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 3), feedbackBy(1, 2), feedbackBy(1, 1), feedbackBy(2, 1), feedbackBy(2, 9)), feedbackBy(1, 1), feedbackBy(2, 1))
	s.expectBehind(feedbackBy(1, 2), feedbackBy(1, 3), feedbackBy(2, 9))
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 4), feedbackBy(3, 5)), feedbackBy(3, 5))
	s.expectDispatched(s.dispatchBacklog())
	r := s.record(s.claim(tasks[0]), delivered)
	tasks = s.expectDispatched(r.Next, feedbackBy(1, 2))
	r = s.record(s.claim(tasks[0]), ledger.Outcome{Status: outcome.Rejected, Reason: "tool_error", Called: true, Stage: "call"})
	tasks = s.expectDispatched(r.Next, feedbackBy(1, 3))
	r = s.record(s.claim(tasks[0]), delivered)
	tasks = s.expectDispatched(r.Next, feedbackBy(1, 4))
	c := s.claim(tasks[0])
	s.expect(c.AheadOf == "", "ahead of %s", c.AheadOf)
	s.expectDispatched(s.record(c, delivered).Next)
}

// OrderOfABacklog checks that feedback whose check begins later than 10 s after its acceptance, and is put off because the
// worker has no slot, goes before a later one of its client that is checked at once.
func (s *suite) OrderOfABacklog() {
	s.verify()
	tasks := s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2))
	s.Advance(11 * time.Second)
	first := s.record(s.claim(tasks[0]), ledger.Outcome{Status: outcome.Waiting, Reason: outcome.AgentBusy, Task: true, Free: true, Stage: "claim"})
	second := s.bindEvent(s.claim(tasks[1]))
	s.expect(!second.MayCall, "the later one may be called first")
	s.expectDispatched(s.record(second, noTurn).Next)
	tasks = s.expectDispatched(s.record(s.bindEvent(s.claim(*first.Task)), delivered).Next, feedbackBy(1, 2))
	s.record(s.claim(tasks[0]), delivered)
}

// OrderOfRepeatedChecks checks that only the first claim of unchecked feedback delays a later one of its client again.
func (s *suite) OrderOfRepeatedChecks() {
	s.verify()
	tasks := s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2))
	s.Advance(11 * time.Second)
	first := s.record(s.claim(tasks[0]), ledger.Outcome{Status: outcome.Waiting, Reason: outcome.AgentBusy, Task: true, Free: true, Stage: "claim"})
	s.expectDispatched(s.record(s.bindEvent(s.claim(tasks[1])), noTurn).Next)
	s.Advance(9 * time.Second)
	s.expectDispatched(s.dispatchDue())
	s.Advance(2 * time.Second)
	s.claim(*first.Task)
	tasks = s.expectDispatched(s.dispatchDue(), feedbackBy(1, 2))
	s.record(s.claim(tasks[0]), delivered)
}

// OrderOfLateFalseJobs checks that false jobs with lower indexes that were accepted later delay a checked feedback for 30 s
// in all, although their checks begin one after the other and last long, another one is accepted in the end, and an earlier
// one, whose event was not found, gets another position.
func (s *suite) OrderOfLateFalseJobs() {
	s.verify()
	tasks := s.acceptJobs(feedbackBy(1, 8), feedbackBy(1, 9), feedbackBy(1, 1), feedbackBy(1, 2), feedbackBy(1, 3), feedbackBy(1, 4))
	s.expectDispatched(s.record(s.claim(tasks[0]), missed).Next)
	s.expectDispatched(s.record(s.bindEvent(s.claim(tasks[1])), noTurn).Next)
	for _, task := range tasks[2:5] {
		s.Advance(9 * time.Second)
		s.claim(task)
		s.expectDispatched(s.dispatchDue())
	}
	again := feedbackBy(1, 8)
	again.TransactionHash = common.Hash{2}
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 5), again), feedbackBy(1, 5), again)
	s.Advance(4 * time.Second)
	tasks = s.expectDispatched(s.dispatchDue(), feedbackBy(1, 9))
	s.record(s.claim(tasks[0]), delivered)
}

// OrderOfFalseJobsInABacklog checks that a false job with a lower index that stays in the backlog delays a checked feedback
// for 10 s.
func (s *suite) OrderOfFalseJobsInABacklog() {
	s.verify()
	var jobs []job.Job
	for client := range byte(ledger.MaxDispatchedPerAgent) {
		jobs = append(jobs, feedbackBy(client, 9))
	}
	tasks := s.expectDispatched(s.acceptJobs(jobs...), jobs...)
	first := s.record(s.bindEvent(s.claim(tasks[0])), failed(time.Second)).Task
	s.expectDispatched(s.acceptJobs(feedbackBy(20, 1), feedbackBy(21, 1), feedbackBy(0, 1)), feedbackBy(20, 1))
	s.Advance(2 * time.Second)
	s.refused(first.ID, first.N, "eight others are dispatched")
	s.expectDispatched(s.record(s.claim(tasks[1]), missed).Next)
	s.expectDispatched(s.dispatchBacklog(), feedbackBy(21, 1))
	s.Advance(9 * time.Second)
	s.expectDispatched(s.dispatchDue())
	s.expectDispatched(s.record(s.claim(tasks[2]), missed).Next, jobs[0])
}

// OrderSentAgain checks that an Accept of a known job and new ones dispatches the first of the new ones.
func (s *suite) OrderSentAgain() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1)), feedbackBy(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
	tasks = s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2), feedbackBy(1, 3)), feedbackBy(1, 2))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, feedbackBy(1, 3))
}

// OrderDelaysForAMinute checks that a failing delivery delays later ones for 60 s, and then waits for the one that overtook
// it.
func (s *suite) OrderDelaysForAMinute() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	first := s.record(s.claim(tasks[0]), failed(10*time.Second))
	s.expectDispatched(first.Next)
	d := s.read(feedbackBy(1, 2).ID())
	s.expect(d.NextAttemptAt != nil && time.Until(*d.NextAttemptAt) <= 61*time.Second, "looked at again at %v",
		d.NextAttemptAt)
	s.Advance(11 * time.Second)
	s.expectDispatched(s.dispatchDue())
	first = s.record(s.claim(*first.Task), failed(50*time.Second))
	s.expectDispatched(first.Next)
	s.Advance(50 * time.Second) // 61 s after the first attempt; the first delivery is due at the same time
	tasks = s.expectDispatched(s.dispatchDue(), feedbackBy(1, 2))
	s.refused(first.Task.ID, first.Task.N, "the later one of its client is under way")
	s.is(feedbackBy(1, 1).ID(), outcome.Queued, "", 2, 2)
	later := s.claim(tasks[0])
	s.expect(later.AheadOf == "1", "ahead of %q", later.AheadOf)
	tasks = s.expectDispatched(s.record(later, delivered).Next, feedbackBy(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
}

// OrderWaitsForConfirmations checks that a delivery delays later ones as long as it waits for confirmations, and for 60 s
// after the claim that found it confirmed, also if that claim ended with a free wait.
func (s *suite) OrderWaitsForConfirmations() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	first := s.record(s.claim(tasks[0]), notYet(20*time.Minute))
	s.Advance(19 * time.Minute)
	s.expectDispatched(s.dispatchDue())
	s.expectDispatched(s.dispatchBacklog())
	s.Advance(time.Minute)
	busy := notYet(5 * time.Minute)
	busy.Reason, busy.Stage = outcome.BreakerOpen, "compose"
	first = s.record(s.claim(*first.Task), busy)
	s.Advance(59 * time.Second)
	s.expectDispatched(s.dispatchDue())
	s.Advance(2 * time.Second)
	tasks = s.expectDispatched(s.dispatchDue(), feedbackBy(1, 2))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
}

// OrderHeldOnes checks that a held delivery delays no other, and delays others again after its release.
func (s *suite) OrderHeldOnes() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2), feedbackBy(1, 3)), feedbackBy(1, 1))
	hold := ledger.Outcome{Status: outcome.Held, Reason: outcome.GatewayUnconfigured, Free: true, Stage: "fetch"}
	tasks = s.expectDispatched(s.record(s.claim(tasks[0]), hold).Next, feedbackBy(1, 2))

	s.tasks(s.Release(s.Context(), nil, true, 100))
	s.expectDispatched(s.dispatchBacklog())
	tasks = s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, feedbackBy(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), failed(time.Second)).Next) // it delays as if it had just been accepted
	s.is(feedbackBy(1, 3).ID(), outcome.Waiting, outcome.BehindEarlier, 0, 0)
}

// OrderCheckedInParallel checks that six false jobs with lower indexes delay the seventh for 10 s if the node does not
// answer about them, for 30 s if they are pending, and not at all if they are refuted.
func (s *suite) OrderCheckedInParallel() {
	s.verify()
	for client, tt := range []struct {
		outcome ledger.Outcome
		delay   time.Duration
	}{
		{missed, 0},
		{ledger.Outcome{Status: outcome.Waiting, Reason: outcome.ChainUnavailable, Delay: 5 * time.Minute, Task: true, Free: true, Undecided: true, Stage: "check"}, 10 * time.Second},
		{pending, 30 * time.Second},
	} {
		var jobs []job.Job
		for index := range 7 {
			jobs = append(jobs, feedbackBy(byte(client), index+1))
		}
		tasks := s.expectDispatched(s.acceptJobs(jobs...), jobs...)
		var last *ledger.Claim
		for _, task := range tasks {
			c := s.claim(task)
			s.expect(!c.MayCall, "%d may be called before its check", c.Job.FeedbackIndex)
			if c.ID == jobs[6].ID() {
				last = c
				continue
			}
			s.expectDispatched(s.record(c, tt.outcome).Next)
		}
		may := s.bindEvent(last).MayCall
		s.expect(may == (tt.delay == 0), "%s: after the check, may call is %v", tt.outcome.Reason, may)
		if tt.delay > 0 {
			again := noTurn
			again.Delay, again.Task = time.Second, true
			r := s.record(last, again)
			s.expectDispatched(r.Next)
			s.expect(r.Rechecked && r.Task == nil, "%+v", r)
			s.is(last.ID, outcome.Waiting, outcome.BehindEarlier, 0, 0)
			s.Advance(tt.delay - time.Second)
			s.expectDispatched(s.dispatchDue())
			s.Advance(2 * time.Second)
			tasks = s.expectDispatched(s.dispatchDue(), jobs[6])
			last = s.claim(tasks[0])
			s.expect(last.MayCall && last.Bound, "%+v", last)
		}
		s.record(last, delivered)
	}
}

// OrderLosesItsTurn checks that a delivery whose check took long waits for the turn that a later one took, and that a
// delivery that waits for confirmations delays later ones.
func (s *suite) OrderLosesItsTurn() {
	s.verify()
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1), feedbackBy(1, 2))
	claims := map[uint64]*ledger.Claim{}
	for _, task := range tasks {
		c := s.claim(task)
		claims[c.Job.FeedbackIndex] = c
	}
	s.Advance(11 * time.Second)
	second, first := s.bindEvent(claims[2]).MayCall, s.bindEvent(claims[1]).MayCall
	s.require(second && !first, "turns: %v, %v", first, second)
	s.expectDispatched(s.record(claims[1], noTurn).Next)
	s.is(claims[1].ID, outcome.Waiting, outcome.BehindEarlier, 0, 0)
	tasks = s.expectDispatched(s.record(claims[2], failed(time.Second)).Next, feedbackBy(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), notYet(time.Hour)).Next)
	s.Advance(2 * time.Second)
	s.refused(claims[2].ID, claims[2].N, "the earlier one waits for confirmations")
	s.expectDispatched(s.dispatchBacklog())
	s.is(claims[2].ID, outcome.Waiting, outcome.BehindEarlier, 1, 1)
}

// OrderComesLate checks that an earlier delivery that is accepted later goes next, also if it is called again, and the later
// one was accepted more than 30 s ago.
func (s *suite) OrderComesLate() {
	later := s.expectDispatched(s.acceptJobs(feedbackBy(1, 5)), feedbackBy(1, 5))
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 4)))
	s.expectBehind(feedbackBy(1, 4))
	r := s.record(s.claim(later[0]), failed(time.Second)) // now the earlier one goes first
	tasks := s.expectDispatched(r.Next, feedbackBy(1, 4))
	s.Advance(31 * time.Second)
	s.refused(r.Task.ID, r.Task.N, "the earlier one is under way")
	earlier := s.record(s.claim(tasks[0]), failed(time.Second))
	s.expectDispatched(earlier.Next)
	s.Advance(2 * time.Second)
	s.expectDispatched(s.record(s.claim(*earlier.Task), delivered).Next, feedbackBy(1, 5))
}

// OrderDeadWorkers checks that a delivery still delays later ones after its worker died.
func (s *suite) OrderDeadWorkers() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	c := s.claim(tasks[0])
	s.lose(c)
	tasks = s.expectDispatched([]ledger.Task{s.nextTask()}, feedbackBy(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, feedbackBy(1, 2))
}

// OrderRevocationAfterFeedback checks that a revocation waits until its feedback has ended, and delays no later feedback.
func (s *suite) OrderRevocationAfterFeedback() {
	tasks := s.expectDispatched(s.acceptJobs(revocationOf(1, 1), feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	first := s.record(s.claim(tasks[0]), failed(2*time.Minute))
	s.expectDispatched(first.Next)
	s.Advance(61 * time.Second)
	tasks = s.expectDispatched(s.dispatchDue(), feedbackBy(1, 2)) // the revocation of 1 does not delay it
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
	s.expectDispatched(s.dispatchBacklog())
	s.Advance(time.Minute)
	tasks = s.expectDispatched(s.record(s.claim(*first.Task), delivered).Next, revocationOf(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
	s.expectDispatched(s.acceptJobs(revocationOf(1, 2)), revocationOf(1, 2)) // its feedback has ended
	s.expectDispatched(s.acceptJobs(revocationOf(2, 7)), revocationOf(2, 7)) // its feedback is unknown
}

// OrderRevocationOfEnded checks that a revocation is dispatched after its feedback ended by its last lease, a cancellation
// or its expiry, although another feedback with many responses has not ended.
func (s *suite) OrderRevocationOfEnded() {
	for client, end := range map[byte]func(ledger.Task){
		1: func(t ledger.Task) {
			s.claim(t)
			s.Advance(lease + time.Second)
			_, dead, err := s.ExpireLeases(s.Context(), 10, 1)
			s.require(err == nil && dead == 1, "%d, %v", dead, err)
		},
		2: func(t ledger.Task) {
			s.cancels(false, 1, t.ID)
		},
		3: func(ledger.Task) {
			n, err := s.Expire(s.Context(), time.Hour, 10)
			s.require(err == nil && n == 1, "%d, %v", n, err)
		},
	} {
		tasks := s.expectDispatched(s.acceptJobs(feedbackBy(client, 2)), feedbackBy(client, 2))
		second := s.record(s.claim(tasks[0]), failed(time.Hour))
		s.Advance(time.Hour)
		jobs := []job.Job{feedbackBy(client, 1), revocationOf(client, 2)}
		for log := range uint(40) {
			jobs = append(jobs, responseTo(client, 1, log))
		}
		tasks = s.expectDispatched(s.acceptJobs(jobs...), feedbackBy(client, 1))
		s.expectDispatched(s.record(s.claim(tasks[0]), failed(2*time.Hour)).Next)
		s.Advance(61 * time.Second)
		end(*second.Task)
		tasks = s.expectDispatched(s.dispatchBacklog(), revocationOf(client, 2))
		s.record(s.claim(tasks[0]), delivered)
		s.cancels(false, 1, feedbackBy(client, 1).ID())
		for tasks = s.dispatchBacklog(); len(tasks) > 0; tasks = tasks[1:] {
			tasks = append(tasks, s.record(s.claim(tasks[0]), delivered).Next...)
		}
		s.is(responseTo(client, 1, 39).ID(), outcome.Delivered, "", 1, 1)
	}
}

// OrderReplayHoldsNobody checks that a replay delays no later delivery, except that a replayed feedback that was never
// called goes before its revocation.
func (s *suite) OrderReplayHoldsNobody() {
	held := s.expectDispatched(s.acceptJobs(feedbackBy(9, 1)), feedbackBy(9, 1))
	s.record(s.claim(held[0]), ledger.Outcome{Status: outcome.Held, Reason: outcome.AuthRequired, Free: true})
	s.expectDispatched(s.acceptJobs(revocationOf(9, 1)))
	_, again := s.replays(false, 1, feedbackBy(9, 1).ID())
	again = s.expectDispatched(again, feedbackBy(9, 1))
	wait := s.record(s.claim(again[0]), ledger.Outcome{Status: outcome.Waiting, Reason: outcome.ConnectFailed, Delay: time.Minute, Task: true})
	s.expectDispatched(wait.Next)
	s.Advance(time.Minute)
	s.expectDispatched(s.record(s.claim(*wait.Task), delivered).Next, revocationOf(9, 1))

	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1)), feedbackBy(1, 1))
	s.record(s.claim(tasks[0]), delivered)
	_, tasks = s.replays(true, 1, feedbackBy(1, 1).ID())
	tasks = s.expectDispatched(tasks, feedbackBy(1, 1))
	next := s.expectDispatched(s.acceptJobs(feedbackBy(1, 2)), feedbackBy(1, 2)) // a replay is an ordering key of its own
	s.expectDispatched(s.acceptJobs(revocationOf(1, 1)))
	s.expectDispatched(s.record(s.claim(tasks[0]), failed(time.Hour)).Next)
	s.expectDispatched(s.record(s.claim(next[0]), delivered).Next, revocationOf(1, 1))
}

// OrderCancelledLetsGo checks that a cancellation releases the deliveries that waited for the cancelled one.
func (s *suite) OrderCancelledLetsGo() {
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2), revocationOf(1, 1), feedbackBy(2, 1)), feedbackBy(1, 1), feedbackBy(2, 1))
	s.cancels(true, 1, feedbackBy(1, 1).ID())
	tasks := s.expectDispatched(s.dispatchBacklog(), revocationOf(1, 1)) // the lowest index first
	tasks = s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, feedbackBy(1, 2))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
}

// OrderPolicyOff checks that an agent's policy can switch its order off and on, and that it overrides the default policy.
func (s *suite) OrderPolicyOff() {
	order := ""
	s.UseOrder(func() string { return order })
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	s.must(s.SetPolicy(s.Context(), Agent(1), policy.Policy{Order: policy.OrderOff}))
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 3), feedbackBy(1, 4)), feedbackBy(1, 3), feedbackBy(1, 4))
	freed := s.tasks(s.IgnoreOrder(s.Context(), 100))
	s.expectDispatched(freed, feedbackBy(1, 2))
	s.must(s.SetPolicy(s.Context(), Agent(1), policy.Policy{Order: policy.OrderStrict}))
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 5)))

	other := func(index int) job.Job {
		j := Feedback(2, index)
		j.ClientAddress = common.BytesToAddress([]byte{1})
		return j
	}
	s.expectDispatched(s.acceptJobs(other(1), other(2)), other(1))
	order = policy.OrderOff
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 6), other(3)), other(3))
	freed = s.tasks(s.IgnoreOrder(s.Context(), 100))
	s.expectDispatched(freed, other(2))
	order = policy.OrderStrict
	s.expectDispatched(s.acceptJobs(other(4)))
}

// OrderManyClients checks that deliveries that wait for others do not count towards the dispatch limit.
func (s *suite) OrderManyClients() {
	var jobs []job.Job
	for client := range byte(12) {
		jobs = append(jobs, feedbackBy(client+1, 1), feedbackBy(client+1, 2))
	}
	tasks := s.acceptJobs(jobs...)
	s.require(len(tasks) == ledger.MaxDispatchedPerAgent, "%d dispatched", len(tasks))
	last, done := map[string]uint64{}, 0
	for ; len(tasks) > 0; tasks = tasks[1:] {
		c := s.claim(tasks[0])
		before := last[c.Job.OrderKey()]
		s.expect(c.Job.FeedbackIndex == before+1, "%d of %s came after %d", c.Job.FeedbackIndex, c.Job.ClientAddress,
			before)
		last[c.Job.OrderKey()], done = c.Job.FeedbackIndex, done+1
		tasks = append(tasks, s.record(c, delivered).Next...)
	}
	s.expect(done == len(jobs), "%d of %d were delivered", done, len(jobs))
}
