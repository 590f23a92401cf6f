package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
)

var (
	command  = ledger.Source{Name: ledger.SourceCommand, Trust: ledger.TrustDirect}
	ordinary = ledger.SourceToken("a", ledger.TrustOrdinary)
	missed   = ledger.Outcome{Status: outcome.Rejected, Reason: outcome.EventNotFound, Stage: "check", Undecided: true}
	noTurn   = ledger.Outcome{Status: outcome.Waiting, Reason: outcome.BehindEarlier, Free: true, NoTurn: true, Stage: "check"}
	pending  = ledger.Outcome{Status: outcome.Waiting, Reason: outcome.NotConfirmed, Delay: 5 * time.Minute, Task: true,
		Free: true, Undecided: true, Stage: "check"}
)

// verify makes the store treat the events of the test's chain as verified.
func (s *suite) verify() {
	s.Helper()
	s.must(s.ReportVerified(s.Context(), []uint64{Feedback(1, 1).ChainID}))
}

// hint returns a job of Feedback(1, 1) with this transaction, tool and sender.
func hint(transaction byte, tool string, from ledger.Source) ledger.Intake {
	j := Feedback(1, 1)
	j.TransactionHash, j.Action.ToolName = common.Hash{transaction}, tool
	return ledger.Intake{Job: j, Source: from}
}

// send accepts one job and returns the answer and the dispatched tasks.
func (s *suite) send(in ledger.Intake) (ledger.Acceptance, []ledger.Task) {
	s.Helper()
	out, tasks := s.accept([]ledger.Intake{in})
	return out[0], tasks
}

// transactions returns the first byte of each hint's transaction. It adds 100 for a refuted hint.
func (s *suite) transactions(c *ledger.Claim) (list []byte) {
	s.Helper()
	hints, err := s.Hints(s.Context(), c)
	s.must(err)
	for _, h := range hints {
		n := h.Job.TransactionHash[0]
		if h.Refuted {
			n += 100
		}
		list = append(list, n)
	}
	return list
}

func (s *suite) TestHintsOfAKey() {
	s.verify()
	_, tasks := s.send(hint(1, "a", ordinary))
	c := s.claim(tasks[0])
	s.expect(c.Verified && !c.Bound && c.Hints == 0 && c.Source == ordinary, "%+v", c)
	for _, tt := range []struct {
		in   ledger.Intake
		want ledger.Verdict
		list []byte
	}{
		{hint(1, "a", ordinary), ledger.Known, nil},
		{hint(1, "b", ordinary), ledger.Conflict, nil},
		{hint(2, "a", ordinary), ledger.Known, []byte{1, 2}},
		{hint(3, "a", ordinary), ledger.Known, []byte{1, 2}}, // a third one of this token
		{hint(2, "a", command), ledger.Known, []byte{1, 2, 2}},
		{hint(2, "a", command), ledger.Known, []byte{1, 2, 2}},
		{hint(2, "b", command), ledger.Conflict, []byte{1, 2, 2}},
		{hint(4, "b", command), ledger.Known, []byte{1, 2, 2, 4}}, // the chain decides which action is used
	} {
		out, _ := s.send(tt.in)
		s.expect(out.Verdict == tt.want && (out.Field == "action") == (tt.want == ledger.Conflict), "%d of %s: %+v",
			tt.in.Job.TransactionHash[0], tt.in.Source.Name, out)
		got := s.transactions(c)
		s.expect(slices.Equal(got, tt.list), "%d of %s: hints %v, want %v", tt.in.Job.TransactionHash[0],
			tt.in.Source.Name, got, tt.list)
	}
	for n := range byte(8) {
		s.send(hint(10+n, "a", command))
	}
	got := s.transactions(c)
	s.expect(slices.Equal(got, []byte{1, 2, 2, 4, 10, 11, 12, 13}), "hints %v", got)
	// All are refuted. A new position drops the first refuted one.
	c = s.claim(s.record(c, missed).Next[0])
	o := missed
	o.Refuted = []int{0, 1, 2, 3, 4, 5, 6, 7}
	rec := s.record(c, o)
	s.expect(!rec.Rechecked, "%+v", rec)
	s.is(c.ID, outcome.Rejected, outcome.EventNotFound, 2, 2)
	out, _ := s.send(hint(13, "a", command))
	s.expect(out.Verdict != ledger.Accepted, "a refuted position: %+v", out)
	out, tasks = s.send(hint(20, "a", command))
	s.require(out.Verdict == ledger.Accepted && len(tasks) == 1, "%+v, %v", out, tasks)
	c = s.claim(tasks[0])
	got = s.transactions(c)
	s.expect(slices.Equal(got, []byte{102, 102, 104, 110, 111, 112, 113, 20}) && c.Budget == 1,
		"hints %v, attempt %d of its budget", got, c.Budget)
}

// TestMissingEventOfManyJobs checks that one Accept may have several jobs of an event that a check did not find. The first
// new position queues the delivery again, and the others become hints.
func (s *suite) TestMissingEventOfManyJobs() {
	s.verify()
	_, tasks := s.send(hint(1, "a", ordinary))
	o := missed
	o.Refuted = []int{0}
	s.record(s.claim(tasks[0]), o)
	out, tasks := s.accept([]ledger.Intake{hint(2, "a", command), hint(3, "a", command), hint(2, "a", command), {Job: Feedback(1, 2)}})
	var verdicts []ledger.Verdict
	for _, a := range out {
		verdicts = append(verdicts, a.Verdict)
	}
	want := []ledger.Verdict{ledger.Accepted, ledger.Known, ledger.Known, ledger.Accepted}
	s.require(slices.Equal(verdicts, want) && len(tasks) == 2, "answers %q, want %q; tasks %+v", verdicts, want, tasks)
	for _, t := range tasks {
		if t.ID == out[0].ID {
			got := s.transactions(s.claim(t))
			s.expect(slices.Equal(got, []byte{101, 2, 3}), "hints %v", got)
		}
	}
}

func (s *suite) TestBind() {
	s.verify()
	_, tasks := s.send(hint(1, "a", ordinary))
	c := s.claim(tasks[0])
	event := ledger.Binding{Job: hint(5, "b", command).Job, Source: command, Corrected: []string{"transactionHash"}}
	event.Job.IdentityRegistry = common.HexToAddress("0xaa")
	s.send(hint(5, "b", command))
	err := s.Bind(s.Context(), c, event)
	s.require(errors.Is(err, ledger.ErrNewHint), "a check that does not know a hint: %v", err)
	c = s.claim(s.record(c, missed).Next[0])
	s.must(s.Bind(s.Context(), c, event))
	o := notYet(3600e9)
	o.Rerouted = true
	rec := s.record(c, o)
	s.require(rec.Rechecked && len(rec.Next) == 1, "%+v", rec)
	c = s.claim(rec.Next[0])
	s.expect(c.Bound && c.Source == command && c.Job.EventSum() == event.Job.EventSum() &&
		c.Agent().Registry == "0x00000000000000000000000000000000000000aa", "%+v", c)
	d := s.read(c.ID)
	s.expect(slices.Equal(d.Corrected, event.Corrected) && d.Verified && d.IdentityRegistry == c.Agent().Registry,
		"%+v", d)
	s.record(c, delivered)
	out, _ := s.send(hint(6, "b", command))
	s.expect(out.Verdict == ledger.Known && slices.Contains(out.Differs, "transactionHash"), "%+v", out)
	err = s.Bind(s.Context(), c, event)
	s.expect(errors.Is(err, ledger.ErrFenced), "under a lost claim: %v", err)
}

func (s *suite) TestGoneAfterACall() {
	s.verify()
	_, tasks := s.send(hint(1, "a", command))
	c := s.claim(tasks[0])
	s.bindEvent(c)
	rec := s.record(c, failed(0))
	s.Advance(1e9)
	c = s.claim(*rec.Task)
	next := hint(2, "a", command).Job
	o := ledger.Outcome{Status: outcome.Cancelled, Reason: outcome.Reorg, Stage: "check", Gone: &ledger.Gone{Next: &next}}
	s.record(c, o)
	d := s.is(c.ID, outcome.Cancelled, outcome.Reorg, 2, 2)
	s.expect(d.Key == next.Key()+"~"+c.ID.String(), "the key is %s", d.Key)
	retraction, err := s.DeliveryByKey(s.Context(), c.Job.Retraction(c.ID).Key())
	s.expect(err == nil && !retraction.Status.Final(), "the retraction: %+v, %v", retraction, err)
	successor, err := s.DeliveryByKey(s.Context(), next.Key())
	s.expect(err == nil && successor.ID != c.ID, "the key is of %s, %v", successor.ID, err)
	_, tasks = s.replays(false, 1, c.ID)
	s.record(s.claim(s.toRun(tasks, 1)[0]), o) // the key and the retraction stay as they are
	again := s.is(c.ID, outcome.Cancelled, outcome.Reorg, 3, 3)
	s.expect(again.Key == d.Key, "the key is %s after a replay", again.Key)
	again, err = s.DeliveryByKey(s.Context(), next.Key())
	s.expect(err == nil && again.ID == successor.ID && again.Status == successor.Status,
		"the key is of %s (%s) after a replay, %v", again.ID, again.Status, err)
	_, err = s.DeliveryByKey(s.Context(), retraction.Key+".2")
	s.expect(errors.Is(err, ledger.ErrNotFound), "a second retraction after a replay: %v", err)
	in := hint(1, "a", command)
	in.Job.FeedbackIndex = 3
	_, tasks = s.send(in)
	c = s.claim(tasks[len(tasks)-1])
	s.bindEvent(c)
	s.record(c, o)
	d, err = s.DeliveryByKey(s.Context(), c.Job.Retraction(c.ID).Key())
	s.expect(errors.Is(err, ledger.ErrNotFound), "a retraction of what was never called: %+v, %v", d, err)
	// An unfinished attempt of an unchecked delivery cannot have called the agent, so the next claim is not InDoubt.
	in = hint(1, "a", command)
	in.Job.FeedbackIndex = 2
	_, tasks = s.send(in)
	c = s.claim(tasks[len(tasks)-1])
	s.lose(c)
	for _, t := range append(tasks, s.dispatchBacklog()...) {
		if t.ID == c.ID && t.N > c.N {
			again := s.claim(t)
			s.expect(!again.Called && !again.InDoubt && again.Unfinished, "%+v", again)
		}
	}
}

// TestRepeatedJobAfterRetraction checks that a repeated job of a called event requests a review, in which the event is read
// from the chain again, only if the event may have left the chain and returned.
func (s *suite) TestRepeatedJobAfterRetraction() {
	s.verify()
	in := hint(1, "a", command)
	_, tasks := s.send(in)
	c := s.claim(tasks[0])
	s.bindEvent(c)
	s.record(c, delivered)
	resend := func(when string, want ...byte) {
		s.Helper()
		out, tasks := s.send(in)
		got := s.transactions(c)
		s.expect(out.Verdict == ledger.Known && len(tasks) == 0 && slices.Equal(got, want), "%s: %+v, hints %v", when,
			out, got)
	}
	resend("before a retraction")
	retraction := c.Job.Retraction(c.ID)
	retraction.Action.ToolName = "a"
	_, tasks = s.send(ledger.Intake{Job: retraction, Source: command})
	resend("before the call of a retraction")
	r := s.claim(tasks[0])
	s.bindEvent(r)
	rec := s.record(r, failed(0))
	resend("after a failed call of the retraction", 1)
	s.Advance(1e9)
	s.record(s.claim(*rec.Task), delivered)
	resend("after the retraction", 1)
}

func (s *suite) TestRevocationFollowsItsFeedback() {
	feedback, revocation := Feedback(1, 1), Feedback(1, 1)
	revocation.Kind, revocation.Reason = "FeedbackRevoked", "client"
	out, tasks := s.accept([]ledger.Intake{{Job: feedback}, {Job: revocation}})
	for _, t := range tasks {
		o := ledger.Outcome{Status: outcome.Skipped, Reason: outcome.NoURI, Stage: "resolve"}
		if t.ID == out[1].ID {
			o.Reason = outcome.NeverDelivered
		}
		s.record(s.claim(t), o)
	}
	_, tasks = s.replays(false, 1, out[0].ID)
	got := s.toRun(tasks, 2)
	s.expect(len(got) == 2 && s.read(out[1].ID).Status == outcome.Queued, "%+v; the revocation is %s", got,
		s.read(out[1].ID).Status)
}
