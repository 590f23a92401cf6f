package delivery

import (
	"fmt"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/devnet"
	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/intake"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/storetest"
)

// TestNeverDelivered: a revocation of, or a response to, a feedback that ended without a call is not sent. It is sent
// if the feedback was or may have been called, or if its attempts are no longer stored. Feedback itself, and a
// retraction after a reorg, are not checked.
func TestNeverDelivered(t *testing.T) {
	t.Parallel()
	ended := func(stage string) store.Delivery {
		return store.Delivery{Status: store.Dead, Attempts: 1, History: []store.Attempt{{Number: 1, Stage: stage, Outcome: "dead"}}}
	}
	for name, c := range map[string]struct {
		kind     job.Kind
		why      string
		feedback store.Delivery
		want     outcome.Reason
	}{
		"a revocation of what was skipped":        {job.KindFeedbackRevoked, job.RevokedByClient, store.Delivery{Status: store.Skipped, Reason: outcome.Revoked}, outcome.NeverDelivered},
		"a revocation of what was not found":      {job.KindFeedbackRevoked, job.RevokedByClient, store.Delivery{Status: store.Rejected, Reason: outcome.EventNotFound}, ""},
		"a response to what was never reached":    {job.KindResponseAppended, "", ended("resolve"), outcome.NeverDelivered},
		"a revocation of what was called":         {job.KindFeedbackRevoked, job.RevokedByClient, ended("call"), ""},
		"of what was delivered":                   {job.KindFeedbackRevoked, job.RevokedByClient, store.Delivery{Status: store.Delivered}, ""},
		"of what a dead worker had":               {job.KindResponseAppended, "", store.Delivery{Status: store.Dead, Attempts: 1, History: []store.Attempt{{Stage: "claim"}}}, ""},
		"of what is open, order being off":        {job.KindResponseAppended, "", store.Delivery{Status: store.Waiting}, ""},
		"of what retention has dropped":           {job.KindResponseAppended, "", store.Delivery{Status: store.Dead, Attempts: 3}, ""},
		"a retraction":                            {job.KindFeedbackRevoked, job.RevokedByReorg, store.Delivery{Status: store.Skipped}, ""},
		"a feedback, whose own row is never read": {job.KindNewFeedback, "", store.Delivery{Status: store.Skipped}, ""},
	} {
		j := storetest.Feedback(1, 1)
		j.Kind, j.Reason = c.kind, c.why
		e := &Executor{Config: Config{Ledger: rowLedger{row: c.feedback}}}
		err := e.checkFeedback(t.Context(), &store.Claim{Job: j})
		var got outcome.Reason
		if err != nil {
			got = classify.Error(err).Reason
		}
		if got != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// keepOrder makes the world's store keep the order of each ordering key.
func (w *world) keepOrder() *world {
	w.t.Helper()
	st, err := store.Open(store.Config{URL: secret.New(w.dbURL), MaxConns: 20, StrictOrder: true})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(st.Close)
	w.store = st
	w.intake = must(intake.New(intake.Config{Ledger: st, Dispatcher: w.dispatcher, Sealer: w.keys, Limits: w.limits(), Logger: w.logger()}))
	return w
}

// TestFalseJobsDelayForSeconds: six false jobs with lower indexes, about which the node never answers, delay the true
// seventh of their client for 10 s. Its own check runs during that time.
func TestFalseJobsDelayForSeconds(t *testing.T) {
	t.Parallel()
	w := newWorld(t).keepOrder()
	a := newAgent(t)
	agent := w.register(at(a.URL))
	k := w.newWorker()
	k.chains[w.net.ChainID()] = &deaf{Chain: w.chain}
	var last map[string]any
	for index := range 7 {
		*w.client = 0 // the same account
		if last, _ = w.rate(devnet.Feedback{AgentID: agent, Tag1: fmt.Sprint(index)}); index < 6 {
			w.submitAs(thiefs, repositioned(last, map[string]any{"transactionHash": nil, "logIndex": nil, "blockHash": nil, "blockNumber": 1}))
		}
	}
	id := w.accept(last)
	deliverDispatched := func() {
		t.Helper()
		for _, d := range must(w.store.Deliveries(t.Context(), store.Filter{Status: store.Queued})) {
			if _, err := k.deliver(heraldtest.Within(t, 20*time.Second), d.ID, d.Dispatch); err != nil {
				t.Fatal(err)
			}
		}
	}
	deliverDispatched()
	if d := w.row(id); d.Status != store.Waiting || d.Reason != outcome.BehindEarlier || len(a.received()) > 0 {
		t.Fatalf("%s %s: %s, %d calls", d.Status, d.Reason, d.Error, len(a.received()))
	}
	storetest.Aging(t, w.dbURL).Advance(11 * time.Second)
	if _, _, err := w.store.Due(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	deliverDispatched()
	if d := w.row(id); d.Status != store.Delivered || len(a.received()) != 1 {
		t.Errorf("%s %s: %s, %d calls", d.Status, d.Reason, d.Error, len(a.received()))
	}
}
