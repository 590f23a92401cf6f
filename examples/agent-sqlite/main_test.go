package main

import (
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentherald/herald/receiver"
	"github.com/agentherald/herald/receiver/receivertest"
)

// TestAnswersFromFeedback checks that the answer contains bad feedback of this week, and none that is good, old, or no
// longer valid, even if a delivery is repeated after a restart.
func TestAnswersFromFeedback(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "feedback.db")
	ctx := t.Context()
	var h receivertest.Herald
	const slow, gone, reorged = "5b0e1c1e-9dad-41d1-80b4-00c04fd430c8", "6b0e1c1e-9dad-41d1-80b4-00c04fd430c8", "7b0e1c1e-9dad-41d1-80b4-00c04fd430c8"
	for _, run := range []string{"first", "after a restart"} {
		db, err := openFeedback(ctx, file)
		if err != nil {
			t.Fatal(err)
		}
		handler, err := newHandler(db, "", "")
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(handler)
		send := func(id, tag, value string, index uint64, age time.Duration) {
			t.Helper()
			f := receiver.Feedback{Event: receiver.Event{DeliveryID: id, Timestamp: time.Now().Add(-age).Unix()}, Tag1: tag, Value: value, FeedbackIndex: index}
			if a, err := h.SendFeedback(ctx, web.URL+"/mcp", f); err != nil || a.Status != receiver.StatusAccepted {
				t.Errorf("%s: %+v, %v", tag, a, err)
			}
		}
		send(slow, "slow", "20", 1, time.Hour)
		send("", "good", "90", 2, time.Hour)
		send("", "long ago", "10", 3, 8*24*time.Hour)
		send("", "beyond 100", "-5", 4, time.Hour)
		send(gone, "revoked", "10", 5, time.Hour)
		send(reorged, "reorged", "10", 6, time.Hour)
		for _, r := range []receiver.Revocation{{FeedbackIndex: 5}, {FeedbackIndex: 1, Reason: "reorg", Retracts: reorged}} {
			if a, err := h.SendRevocation(ctx, web.URL+"/mcp", r); err != nil || a.Status != receiver.StatusAccepted {
				t.Errorf("%+v, %v", a, err)
			}
		}
		list, err := db.listDisliked(ctx, time.Now().AddDate(0, 0, -7))
		if err != nil || len(list) != 1 || list[0].Tag != "slow" || list[0].Score != 20 {
			t.Errorf("%s: %+v, %v", run, list, err)
		}
		if err := askAgent(ctx, web.URL+"/own/mcp"); err != nil {
			t.Error(err)
		}
		if err := askAgent(ctx, web.URL+"/mcp"); err == nil {
			t.Error("Herald can ask")
		}
		web.Close()
		if err := db.close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNeedsBothAddresses: with only one of -herald and -self, the agent does not start, because it would serve anyone.
func TestNeedsBothAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{{"https://herald.example", ""}, {"", "https://agent.example"}} {
		if _, err := newHandler(nil, c[0], c[1]); err == nil {
			t.Errorf("-herald %q -self %q is taken", c[0], c[1])
		}
	}
}
