package storetest

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// OrderedStore is a store that keeps the order of each ordering key.
type OrderedStore interface {
	Store
	Followers(ctx context.Context, from int64, limit int) ([]store.Task, error)
}

// RunOrder runs the suite for stores that keep the order of each ordering key (docs/design/delivery.md).
func RunOrder(t *testing.T, open func(t *testing.T) (OrderedStore, Clock)) {
	for name, test := range map[string]func(*orderSuite){
		"one of a client at a time":           (*orderSuite).oneAtATime,
		"accepted in another order":           (*orderSuite).acceptedInAnotherOrder,
		"sent again with what is known":       (*orderSuite).sentAgain,
		"an earlier one holds later ones 60s": (*orderSuite).holdsForAMinute,
		"free waits hold on":                  (*orderSuite).freeWaitsHoldOn,
		"held ones hold 60s":                  (*orderSuite).heldOnes,
		"an earlier one that comes late":      (*orderSuite).comesLate,
		"a dead worker's":                     (*orderSuite).deadWorkers,
		"revocation after feedback":           (*orderSuite).revocationAfterFeedback,
		"responses come one by one":           (*orderSuite).responsesOneByOne,
		"a replay holds nobody":               (*orderSuite).replayHoldsNobody,
		"what is cancelled lets go":           (*orderSuite).cancelledLetsGo,
		"order switched off for an agent":     (*orderSuite).policyOff,
		"more clients than places":            (*orderSuite).manyClients,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := open(t)
			test(&orderSuite{suite: &suite{T: t, Store: s, Clock: c}, followers: s.Followers})
		})
	}
}

type orderSuite struct {
	*suite
	followers func(ctx context.Context, from int64, limit int) ([]store.Task, error)
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

func responseTo(client byte, index int, log uint) job.Job {
	j := feedbackBy(client, index)
	j.Kind, j.Responder, j.LogIndex = job.KindResponseAppended, common.HexToAddress("0x77"), &log
	return j
}

func (s *orderSuite) acceptJobs(jobs ...job.Job) []store.Task {
	s.Helper()
	in := make([]store.Intake, len(jobs))
	for i, j := range jobs {
		in[i] = store.Intake{Job: j}
	}
	_, tasks, err := s.Accept(s.Context(), in)
	s.must(err)
	return tasks
}

// expectDispatched checks which deliveries were dispatched, and returns their tasks.
func (s *orderSuite) expectDispatched(tasks []store.Task, want ...job.Job) []store.Task {
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
	if !slices.Equal(got, ids) {
		s.Fatalf("dispatched %q, want %q", got, ids)
	}
	return s.toRun(tasks, len(tasks))
}

// expectBehind checks that the deliveries wait for another one of their ordering key.
func (s *orderSuite) expectBehind(jobs ...job.Job) {
	s.Helper()
	for _, j := range jobs {
		if d := s.is(j.ID(), store.Waiting, reason.BehindEarlier, 0, 0); d.Error == "" || d.Dispatch != 0 {
			s.Errorf("%+v", d)
		}
	}
}

func (s *orderSuite) dispatchDue() []store.Task {
	s.Helper()
	tasks, _, err := s.Due(s.Context(), 100)
	s.must(err)
	return tasks
}

func (s *orderSuite) dispatchFollowers() []store.Task {
	s.Helper()
	tasks, err := s.followers(s.Context(), math.MinInt64, 100)
	s.must(err)
	return tasks
}

// oneAtATime checks that the deliveries of one ordering key are dispatched one after the other.
func (s *orderSuite) oneAtATime() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2), feedbackBy(1, 3), feedbackBy(2, 1), feedbackBy(2, 9)), feedbackBy(1, 1), feedbackBy(2, 1))
	s.expectBehind(feedbackBy(1, 2), feedbackBy(1, 3), feedbackBy(2, 9))
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 4), feedbackBy(3, 5)), feedbackBy(3, 5))
	s.expectDispatched(s.dispatchFollowers())
	r := s.record(s.claim(tasks[0]), delivered)
	tasks = s.expectDispatched(r.Next, feedbackBy(1, 2))
	r = s.record(s.claim(tasks[0]), store.Outcome{Status: store.Rejected, Reason: "tool_error", Called: true, Stage: "call"})
	tasks = s.expectDispatched(r.Next, feedbackBy(1, 3))
	r = s.record(s.claim(tasks[0]), delivered)
	tasks = s.expectDispatched(r.Next, feedbackBy(1, 4))
	c := s.claim(tasks[0])
	if c.AheadOf != "" {
		s.Errorf("ahead of %s", c.AheadOf)
	}
	s.expectDispatched(s.record(c, delivered).Next)
}

// acceptedInAnotherOrder checks that the index decides the order within a batch.
func (s *orderSuite) acceptedInAnotherOrder() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 3), feedbackBy(1, 2), feedbackBy(1, 1)), feedbackBy(1, 1))
	tasks = s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, feedbackBy(1, 2))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, feedbackBy(1, 3))
}

// sentAgain checks that a batch with a known job and new ones dispatches the first of the new ones.
func (s *orderSuite) sentAgain() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1)), feedbackBy(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
	tasks = s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2), feedbackBy(1, 3)), feedbackBy(1, 2))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, feedbackBy(1, 3))
}

// holdsForAMinute checks that a failing delivery blocks later ones for 60 s, and then waits for the one that overtook
// it.
func (s *orderSuite) holdsForAMinute() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	first := s.record(s.claim(tasks[0]), failed(10*time.Second))
	s.expectDispatched(first.Next)
	if d := s.read(feedbackBy(1, 2).ID()); d.NextAttemptAt == nil || time.Until(*d.NextAttemptAt) > 61*time.Second {
		s.Errorf("looked at again at %v", d.NextAttemptAt)
	}
	s.Advance(11 * time.Second)
	s.expectDispatched(s.dispatchDue())
	first = s.record(s.claim(*first.Task), failed(50*time.Second))
	s.expectDispatched(first.Next)
	s.Advance(50 * time.Second) // 61 s after the first attempt; the first delivery is due at the same time
	tasks = s.expectDispatched(s.dispatchDue(), feedbackBy(1, 2))
	s.refused(first.Task.ID, first.Task.N, "the later one of its client is under way")
	s.is(feedbackBy(1, 1).ID(), store.Waiting, reason.BehindEarlier, 2, 2)
	later := s.claim(tasks[0])
	if later.AheadOf != "1" {
		s.Errorf("ahead of %q", later.AheadOf)
	}
	tasks = s.expectDispatched(s.record(later, delivered).Next, feedbackBy(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
}

// freeWaitsHoldOn checks that a delivery without a counted attempt blocks later ones, and an unconfirmed one for ten
// minutes.
func (s *orderSuite) freeWaitsHoldOn() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	busy := notYet(2 * time.Minute)
	busy.Reason = reason.BreakerOpen
	first := s.record(s.claim(tasks[0]), busy)
	s.Advance(90 * time.Second)
	s.expectDispatched(s.dispatchDue())
	s.expectDispatched(s.dispatchFollowers())
	s.Advance(31 * time.Second)
	tasks = s.expectDispatched(s.record(s.claim(*first.Task), delivered).Next, feedbackBy(1, 2))

	// An unconfirmed delivery blocks later ones for ten minutes only, because its node may never answer.
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 3)))
	first = s.record(s.claim(tasks[0]), notYet(20*time.Minute))
	s.Advance(9 * time.Minute)
	s.expectDispatched(s.dispatchDue())
	s.Advance(2 * time.Minute)
	s.expectDispatched(s.dispatchDue(), feedbackBy(1, 3))
}

// heldOnes checks that a held delivery blocks later ones for 60 s, and blocks them again after its release.
func (s *orderSuite) heldOnes() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	hold := store.Outcome{Status: store.Held, Reason: reason.GatewayUnconfigured, Free: true, Stage: "fetch"}
	s.expectDispatched(s.record(s.claim(tasks[0]), hold).Next)
	s.Advance(61 * time.Second)
	tasks = s.expectDispatched(s.dispatchDue(), feedbackBy(1, 2))
	s.expectDispatched(s.record(s.claim(tasks[0]), hold).Next)

	_, err := s.Release(s.Context(), nil, true, 100)
	s.must(err)
	tasks, err = s.Backlog(s.Context(), 100)
	s.must(err)
	tasks = s.expectDispatched(tasks, feedbackBy(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), failed(time.Second)).Next) // it blocks as if it had just been accepted
	s.is(feedbackBy(1, 2).ID(), store.Waiting, reason.BehindEarlier, 0, 0)
}

// comesLate checks that an earlier delivery that is accepted later goes next.
func (s *orderSuite) comesLate() {
	later := s.expectDispatched(s.acceptJobs(feedbackBy(1, 5)), feedbackBy(1, 5))
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 4)))
	s.expectBehind(feedbackBy(1, 4))
	r := s.record(s.claim(later[0]), failed(time.Second)) // now the earlier one goes first
	tasks := s.expectDispatched(r.Next, feedbackBy(1, 4))
	s.Advance(2 * time.Second)
	s.refused(r.Task.ID, r.Task.N, "the earlier one is under way")
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, feedbackBy(1, 5))
}

// deadWorkers checks that a delivery still blocks later ones after its worker died.
func (s *orderSuite) deadWorkers() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	c := s.claim(tasks[0])
	s.lose(c)
	s.expectDispatched(s.dispatchFollowers())
	tasks = s.expectDispatched([]store.Task{s.next()}, feedbackBy(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, feedbackBy(1, 2))
}

// revocationAfterFeedback checks that a revocation waits until its feedback has ended, without blocking later feedback.
func (s *orderSuite) revocationAfterFeedback() {
	tasks := s.expectDispatched(s.acceptJobs(revocationOf(1, 1), feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	first := s.record(s.claim(tasks[0]), failed(2*time.Minute))
	s.expectDispatched(first.Next)
	s.Advance(61 * time.Second)
	tasks = s.expectDispatched(s.dispatchDue(), feedbackBy(1, 2)) // the revocation of 1 does not hide it
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
	s.expectDispatched(s.dispatchFollowers())
	s.Advance(time.Minute)
	tasks = s.expectDispatched(s.record(s.claim(*first.Task), delivered).Next, revocationOf(1, 1))
	s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next)
	s.expectDispatched(s.acceptJobs(revocationOf(1, 2)), revocationOf(1, 2)) // its feedback has ended
	s.expectDispatched(s.acceptJobs(revocationOf(2, 7)), revocationOf(2, 7)) // its feedback is unknown
}

// responsesOneByOne checks that responses to a feedback are dispatched one by one, and do not block later feedback for
// ever.
func (s *orderSuite) responsesOneByOne() {
	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), responseTo(1, 1, 1), responseTo(1, 1, 2), feedbackBy(1, 2)), feedbackBy(1, 1))
	want := map[string]bool{responseTo(1, 1, 1).Key(): true, responseTo(1, 1, 2).Key(): true, feedbackBy(1, 2).Key(): true}
	for n := range uint(3) {
		tasks = s.toRun(s.record(s.claim(tasks[0]), delivered).Next, 0)
		if len(tasks) != 1 || !want[s.read(tasks[0].ID).Key] {
			s.Fatalf("dispatched %+v, of %v", tasks, want)
		}
		delete(want, s.read(tasks[0].ID).Key)
		s.expectDispatched(s.acceptJobs(responseTo(1, 1, 10+n))) // new responses of strangers come after the older deliveries
	}
	tasks = s.expectDispatched(s.record(s.claim(tasks[0]), delivered).Next, responseTo(1, 1, 10))
	s.record(s.claim(tasks[0]), delivered)
}

// replayHoldsNobody checks that a replay blocks no later delivery, except that a replayed feedback that was never
// called goes before its revocation.
func (s *orderSuite) replayHoldsNobody() {
	held := s.expectDispatched(s.acceptJobs(feedbackBy(9, 1)), feedbackBy(9, 1))
	s.record(s.claim(held[0]), store.Outcome{Status: store.Held, Reason: reason.AuthRequired, Free: true})
	s.expectDispatched(s.acceptJobs(revocationOf(9, 1)))
	_, _, again, err := s.Replay(s.Context(), []uuid.UUID{feedbackBy(9, 1).ID()}, false)
	s.must(err)
	again = s.expectDispatched(again, feedbackBy(9, 1))
	s.expectDispatched(s.record(s.claim(again[0]), store.Outcome{Status: store.Waiting, Reason: reason.ConnectFailed, Delay: time.Hour, Task: true}).Next)
	s.expectDispatched(s.dispatchFollowers())

	tasks := s.expectDispatched(s.acceptJobs(feedbackBy(1, 1)), feedbackBy(1, 1))
	s.record(s.claim(tasks[0]), delivered)
	_, _, tasks, err = s.Replay(s.Context(), []uuid.UUID{feedbackBy(1, 1).ID()}, true)
	s.must(err)
	tasks = s.expectDispatched(tasks, feedbackBy(1, 1))
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 2), revocationOf(1, 1))) // they wait for the running replay
	next := s.record(s.claim(tasks[0]), failed(time.Hour)).Next
	if tasks = s.toRun(next, 0); len(tasks) != 1 {
		s.Fatalf("%+v", tasks)
	}
	if next = s.record(s.claim(tasks[0]), delivered).Next; len(next) != 1 {
		s.Errorf("%+v", next)
	}
}

// cancelledLetsGo checks that Followers releases the deliveries that waited for a cancelled one.
func (s *orderSuite) cancelledLetsGo() {
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2), revocationOf(1, 1), feedbackBy(2, 1)), feedbackBy(1, 1), feedbackBy(2, 1))
	_, _, _, err := s.Cancel(s.Context(), []uuid.UUID{feedbackBy(1, 1).ID()}, true)
	s.must(err)
	tasks := s.toRun(s.dispatchFollowers(), 0)
	if len(tasks) != 1 {
		s.Fatalf("%+v", tasks)
	}
	s.expectDispatched(s.dispatchFollowers())
	if next := s.record(s.claim(tasks[0]), delivered).Next; len(next) > 1 {
		s.Errorf("%+v", next)
	}
	s.dispatchFollowers()
	for _, j := range []job.Job{feedbackBy(1, 2), revocationOf(1, 1)} {
		if d := s.read(j.ID()); d.Dispatch != 1 {
			s.Errorf("%+v", d)
		}
	}
}

// policyOff checks that an agent's policy can switch its order off and on.
func (s *orderSuite) policyOff() {
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 1), feedbackBy(1, 2)), feedbackBy(1, 1))
	s.must(s.SetPolicy(s.Context(), Agent(1), store.Policy{Order: store.OrderOff}))
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 3), feedbackBy(1, 4)), feedbackBy(1, 3), feedbackBy(1, 4))
	s.expectDispatched(s.dispatchFollowers(), feedbackBy(1, 2))
	s.must(s.SetPolicy(s.Context(), Agent(1), store.Policy{Order: store.OrderStrict}))
	s.expectDispatched(s.acceptJobs(feedbackBy(1, 5)))
}

// manyClients checks that deliveries that wait for others use none of the eight slots.
func (s *orderSuite) manyClients() {
	var jobs []job.Job
	for client := range byte(12) {
		jobs = append(jobs, feedbackBy(client+1, 1), feedbackBy(client+1, 2))
	}
	tasks := s.acceptJobs(jobs...)
	if len(tasks) != store.MaxDispatchedPerAgent {
		s.Fatalf("%d dispatched", len(tasks))
	}
	last, done := map[string]uint64{}, 0
	for ; len(tasks) > 0; tasks = tasks[1:] {
		c := s.claim(tasks[0])
		if before := last[c.Job.OrderKey()]; c.Job.FeedbackIndex != before+1 {
			s.Errorf("%d of %s came after %d", c.Job.FeedbackIndex, c.Job.ClientAddress, before)
		}
		last[c.Job.OrderKey()], done = c.Job.FeedbackIndex, done+1
		tasks = append(tasks, s.record(c, delivered).Next...)
	}
	if done != len(jobs) {
		s.Errorf("%d of %d were delivered", done, len(jobs))
	}
}
