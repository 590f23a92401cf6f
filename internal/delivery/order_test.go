package delivery

import (
	"testing"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
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
		want     reason.Reason
	}{
		"a revocation of what was skipped":        {job.KindFeedbackRevoked, job.RevokedByClient, store.Delivery{Status: store.Skipped, Reason: reason.Revoked}, reason.NeverDelivered},
		"a revocation of what was not found":      {job.KindFeedbackRevoked, job.RevokedByClient, store.Delivery{Status: store.Rejected, Reason: reason.EventNotFound}, ""},
		"a response to what was never reached":    {job.KindResponseAppended, "", ended("resolve"), reason.NeverDelivered},
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
		var got reason.Reason
		if err != nil {
			got = retry.Classify(err).Reason
		}
		if got != c.want {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
