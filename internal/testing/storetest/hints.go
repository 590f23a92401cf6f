package storetest

import (
	"errors"
	"math/big"
	"slices"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

var (
	command  = store.Source{Name: store.SourceCommand, Trust: store.TrustDirect}
	ordinary = store.SourceToken("a", store.TrustOrdinary)
	missed   = store.Outcome{Status: store.Rejected, Reason: outcome.EventNotFound, Stage: "check", Undecided: true}
)

// verify makes the store treat the events of the test's chain as verified.
func (s *suite) verify() {
	s.Helper()
	s.must(s.ReportVerified(s.Context(), []uint64{Feedback(1, 1).ChainID}))
}

// hint returns a job of Feedback(1, 1) with this transaction, tool and sender.
func hint(transaction byte, tool string, from store.Source) store.Intake {
	j := Feedback(1, 1)
	j.TransactionHash, j.Action.ToolName = common.Hash{transaction}, tool
	return store.Intake{Job: j, Source: from}
}

// send accepts one job and returns the answer and the dispatched tasks.
func (s *suite) send(in store.Intake) (store.Acceptance, []store.Task) {
	s.Helper()
	out, tasks, err := s.Accept(s.Context(), []store.Intake{in})
	s.must(err)
	return out[0], tasks
}

// transactions returns the first byte of each hint's transaction. It adds 100 for a refuted hint.
func (s *suite) transactions(c *store.Claim) (list []byte) {
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

func (s *suite) hintsOfAKey() {
	s.verify()
	_, tasks := s.send(hint(1, "a", ordinary))
	c := s.claim(tasks[0])
	if !c.Verified || c.Bound || c.Hints != 0 || c.Source != ordinary {
		s.Errorf("%+v", c)
	}
	for _, tt := range []struct {
		in   store.Intake
		want store.Verdict
		list []byte
	}{
		{hint(1, "a", ordinary), store.Known, nil},
		{hint(1, "b", ordinary), store.Conflict, nil},
		{hint(2, "a", ordinary), store.Known, []byte{1, 2}},
		{hint(3, "a", ordinary), store.Known, []byte{1, 2}}, // a third one of this token
		{hint(2, "a", command), store.Known, []byte{1, 2, 2}},
		{hint(2, "a", command), store.Known, []byte{1, 2, 2}},
		{hint(4, "b", command), store.Conflict, []byte{1, 2, 2, 4}},
	} {
		if out, _ := s.send(tt.in); out.Verdict != tt.want || (out.Field == "action") != (tt.want == store.Conflict) {
			s.Errorf("%d of %s: %+v", tt.in.Job.TransactionHash[0], tt.in.Source.Name, out)
		}
		if got := s.transactions(c); !slices.Equal(got, tt.list) {
			s.Errorf("%d of %s: hints %v, want %v", tt.in.Job.TransactionHash[0], tt.in.Source.Name, got, tt.list)
		}
	}
	for n := range byte(8) {
		s.send(hint(10+n, "a", command))
	}
	if got := s.transactions(c); !slices.Equal(got, []byte{1, 2, 2, 4, 10, 11, 12, 13}) {
		s.Errorf("hints %v", got)
	}
	// All are refuted. A new position drops the first refuted one.
	c = s.claim(s.record(c, missed).Next[0])
	o := missed
	o.Refuted = []int{0, 1, 2, 3, 4, 5, 6, 7}
	if rec := s.record(c, o); rec.Rechecked {
		s.Errorf("%+v", rec)
	}
	s.is(c.ID, store.Rejected, outcome.EventNotFound, 2, 2)
	if out, _ := s.send(hint(13, "a", command)); out.Verdict == store.Accepted {
		s.Errorf("a refuted position: %+v", out)
	}
	out, tasks := s.send(hint(20, "a", command))
	if out.Verdict != store.Accepted || len(tasks) != 1 {
		s.Fatalf("%+v, %v", out, tasks)
	}
	c = s.claim(tasks[0])
	if got := s.transactions(c); !slices.Equal(got, []byte{102, 102, 104, 110, 111, 112, 113, 20}) || c.Budget != 1 {
		s.Errorf("hints %v, attempt %d of its budget", got, c.Budget)
	}
}

func (s *suite) newHintIsCheckedAtOnce() {
	s.verify()
	for _, o := range []store.Outcome{missed, notYet(3600e9)} {
		o.Undecided = true
		in := hint(1, "a", command)
		in.Job.AgentID = big.NewInt(int64(len(o.Reason)))
		second := in
		second.Job.TransactionHash = common.Hash{2}
		_, tasks := s.send(in)
		c := s.claim(tasks[0])
		s.send(second)
		rec := s.record(c, o)
		if !rec.Rechecked || len(rec.Next) != 1 || rec.Task != nil {
			s.Fatalf("%+v", rec)
		}
		c = s.claim(rec.Next[0])
		s.send(second)
		if rec := s.record(c, o); rec.Rechecked {
			s.Errorf("%+v", rec)
		}
	}
}

// missingEventOfManyJobs checks that one Accept may have several jobs of an event that a check did not find. The first
// new position queues the delivery again, and the others become hints.
func (s *suite) missingEventOfManyJobs() {
	s.verify()
	_, tasks := s.send(hint(1, "a", ordinary))
	o := missed
	o.Refuted = []int{0}
	s.record(s.claim(tasks[0]), o)
	out, tasks, err := s.Accept(s.Context(), []store.Intake{hint(2, "a", command), hint(3, "a", command), hint(2, "a", command), {Job: Feedback(1, 2)}})
	s.must(err)
	var verdicts []store.Verdict
	for _, a := range out {
		verdicts = append(verdicts, a.Verdict)
	}
	if want := []store.Verdict{store.Accepted, store.Known, store.Known, store.Accepted}; !slices.Equal(verdicts, want) || len(tasks) != 2 {
		s.Fatalf("answers %q, want %q; tasks %+v", verdicts, want, tasks)
	}
	for _, t := range tasks {
		if t.ID == out[0].ID {
			if got := s.transactions(s.claim(t)); !slices.Equal(got, []byte{101, 2, 3}) {
				s.Errorf("hints %v", got)
			}
		}
	}
}

func (s *suite) bind() {
	s.verify()
	_, tasks := s.send(hint(1, "a", ordinary))
	c := s.claim(tasks[0])
	event := store.Binding{Job: hint(5, "b", command).Job, Source: command, Corrected: []string{"transactionHash"}}
	event.Job.IdentityRegistry = common.HexToAddress("0xaa")
	s.send(hint(5, "b", command))
	if err := s.Bind(s.Context(), c, event); !errors.Is(err, store.ErrNewHint) {
		s.Fatalf("a check that does not know a hint: %v", err)
	}
	c = s.claim(s.record(c, missed).Next[0])
	s.must(s.Bind(s.Context(), c, event))
	o := notYet(3600e9)
	o.Rerouted = true
	rec := s.record(c, o)
	if !rec.Rechecked || len(rec.Next) != 1 {
		s.Fatalf("%+v", rec)
	}
	c = s.claim(rec.Next[0])
	if !c.Bound || c.Source != command || c.Job.EventSum() != event.Job.EventSum() || c.Agent().Registry != "0x00000000000000000000000000000000000000aa" {
		s.Errorf("%+v", c)
	}
	if d := s.read(c.ID); !slices.Equal(d.Corrected, event.Corrected) || !d.Verified || d.IdentityRegistry != c.Agent().Registry {
		s.Errorf("%+v", d)
	}
	s.record(c, delivered)
	if out, _ := s.send(hint(6, "b", command)); out.Verdict != store.Known || !slices.Contains(out.Differs, "transactionHash") {
		s.Errorf("%+v", out)
	}
	if err := s.Bind(s.Context(), c, event); !errors.Is(err, store.ErrFenced) {
		s.Errorf("under a lost claim: %v", err)
	}
}

func (s *suite) goneAfterACall() {
	s.verify()
	_, tasks := s.send(hint(1, "a", command))
	c := s.claim(tasks[0])
	s.must(s.Bind(s.Context(), c, store.Binding{Job: c.Job, Source: c.Source}))
	rec := s.record(c, failed(0))
	s.Advance(1e9)
	c = s.claim(*rec.Task)
	next := hint(2, "a", command).Job
	o := store.Outcome{Status: store.Cancelled, Reason: outcome.Reorg, Stage: "check", Gone: &store.Gone{Next: &next}}
	s.record(c, o)
	d := s.is(c.ID, store.Cancelled, outcome.Reorg, 2, 2)
	if d.Key != next.Key()+"~"+c.ID.String() {
		s.Errorf("the key is %s", d.Key)
	}
	retraction, err := s.DeliveryByKey(s.Context(), c.Job.Retraction(c.ID).Key())
	if err != nil || retraction.Status.Final() {
		s.Errorf("the retraction: %+v, %v", retraction, err)
	}
	successor, err := s.DeliveryByKey(s.Context(), next.Key())
	if err != nil || successor.ID == c.ID {
		s.Errorf("the key is of %s, %v", successor.ID, err)
	}
	_, _, tasks, err = s.Replay(s.Context(), []uuid.UUID{c.ID}, false)
	s.must(err)
	s.record(s.claim(s.toRun(tasks, 1)[0]), o) // the key and the retraction stay as they are
	if again := s.is(c.ID, store.Cancelled, outcome.Reorg, 3, 3); again.Key != d.Key {
		s.Errorf("the key is %s after a replay", again.Key)
	}
	if again, err := s.DeliveryByKey(s.Context(), next.Key()); err != nil || again.ID != successor.ID || again.Status != successor.Status {
		s.Errorf("the key is of %s (%s) after a replay, %v", again.ID, again.Status, err)
	}
	if _, err := s.DeliveryByKey(s.Context(), retraction.Key+".2"); !errors.Is(err, store.ErrNotFound) {
		s.Errorf("a second retraction after a replay: %v", err)
	}
	in := hint(1, "a", command)
	in.Job.FeedbackIndex = 3
	_, tasks = s.send(in)
	c = s.claim(tasks[len(tasks)-1])
	s.must(s.Bind(s.Context(), c, store.Binding{Job: c.Job, Source: c.Source}))
	s.record(c, o)
	if d, err := s.DeliveryByKey(s.Context(), c.Job.Retraction(c.ID).Key()); !errors.Is(err, store.ErrNotFound) {
		s.Errorf("a retraction of what was never called: %+v, %v", d, err)
	}
	// An unfinished attempt of an unchecked delivery cannot have called the agent, so the next claim is not InDoubt.
	in = hint(1, "a", command)
	in.Job.FeedbackIndex = 2
	_, tasks = s.send(in)
	c = s.claim(tasks[len(tasks)-1])
	s.lose(c)
	for _, t := range append(tasks, s.dispatchBacklog()...) {
		if t.ID == c.ID && t.N > c.N {
			if again := s.claim(t); again.Called || again.InDoubt || !again.Unfinished {
				s.Errorf("%+v", again)
			}
		}
	}
}

// repeatedJobAfterRetraction checks that a repeated job of a called event requests a review, in which the event is read
// from the chain again, only if the event may have left the chain and returned.
func (s *suite) repeatedJobAfterRetraction() {
	s.verify()
	in := hint(1, "a", command)
	_, tasks := s.send(in)
	c := s.claim(tasks[0])
	s.must(s.Bind(s.Context(), c, store.Binding{Job: c.Job, Source: c.Source}))
	s.record(c, delivered)
	resend := func(when string, want ...byte) {
		s.Helper()
		out, tasks := s.send(in)
		if got := s.transactions(c); out.Verdict != store.Known || len(tasks) > 0 || !slices.Equal(got, want) {
			s.Errorf("%s: %+v, hints %v", when, out, got)
		}
	}
	resend("before a retraction")
	retraction := c.Job.Retraction(c.ID)
	retraction.Action.ToolName = "a"
	_, tasks = s.send(store.Intake{Job: retraction, Source: command})
	resend("before the call of a retraction")
	r := s.claim(tasks[0])
	s.must(s.Bind(s.Context(), r, store.Binding{Job: r.Job, Source: r.Source}))
	rec := s.record(r, failed(0))
	resend("after a failed call of the retraction", 1)
	s.Advance(1e9)
	s.record(s.claim(*rec.Task), delivered)
	resend("after the retraction", 1)
}

func (s *suite) unverifiedJobIsTheContent() {
	_, tasks := s.send(hint(1, "a", command))
	c := s.claim(tasks[0])
	other := hint(2, "a", command)
	other.Job.Tag1 = "other"
	if out, _ := s.send(other); out.Verdict != store.Conflict || out.Field != "tag1" || c.Verified {
		s.Errorf("%+v", out)
	}
	if out, _ := s.send(hint(2, "a", command)); out.Verdict != store.Known || len(s.transactions(c)) != 0 {
		s.Errorf("%+v", out)
	}
}

func (s *suite) revocationFollowsItsFeedback() {
	feedback, revocation := Feedback(1, 1), Feedback(1, 1)
	revocation.Kind, revocation.Reason = "FeedbackRevoked", "client"
	out, tasks, err := s.Accept(s.Context(), []store.Intake{{Job: feedback}, {Job: revocation}})
	s.must(err)
	for _, t := range tasks {
		o := store.Outcome{Status: store.Skipped, Reason: outcome.NoURI, Stage: "resolve"}
		if t.ID == out[1].ID {
			o.Reason = outcome.NeverDelivered
		}
		s.record(s.claim(t), o)
	}
	_, _, tasks, err = s.Replay(s.Context(), []uuid.UUID{out[0].ID}, false)
	s.must(err)
	if got := s.toRun(tasks, 2); len(got) != 2 || s.read(out[1].ID).Status != store.Queued {
		s.Errorf("%+v; the revocation is %s", got, s.read(out[1].ID).Status)
	}
}
