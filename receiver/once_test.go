package receiver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mark3labs/mcp-go/server"
)

// TestConcurrentCallWaits checks that a second call for a delivery, during the first, waits for the result of the
// first. An aborted first call is no success.
func TestConcurrentCallWaits(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		end  func() error // the end of the first call
		want error
	}{
		"success": {func() error { return nil }, nil},
		"failure": {func() error { return failed }, failed},
		"abort":   {func() error { runtime.Goexit(); return nil }, errAborted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := &once{store: NewMemoryStore(1), running: map[string]*flight{}}
				release, calls := make(chan struct{}), 0
				go func() {
					_, _ = o.do(t.Context(), "a", func() error {
						calls++
						<-release
						return c.end()
					})
				}()
				synctest.Wait()
				answered, err := false, error(nil)
				go func() {
					var duplicate bool
					duplicate, err = o.do(t.Context(), "a", func() error { t.Error("the second ran"); return nil })
					if answered = true; !duplicate {
						t.Error("the second is no duplicate")
					}
				}()
				gone, leave := context.WithCancel(t.Context())
				var left error
				go func() { _, left = o.do(gone, "a", func() error { t.Error("the third ran"); return nil }) }()
				if _, err := o.do(t.Context(), "b", func() error { return nil }); err != nil {
					t.Errorf("another delivery: %v", err)
				}
				synctest.Wait()
				if answered || calls != 1 {
					t.Errorf("answered %t after %d calls, while the first runs", answered, calls)
				}
				leave()
				synctest.Wait()
				if !errors.Is(left, context.Canceled) {
					t.Errorf("a caller that left: %v", left)
				}
				close(release)
				synctest.Wait()
				if !answered || !errors.Is(err, c.want) || len(o.running) != 0 {
					t.Errorf("answered %t with %v, %d still run", answered, err, len(o.running))
				}
			})
		})
	}
}

// TestSlowBatch checks that the elements of a batch that are left after batchTime are to be sent again, and that an
// answer arrives before Herald's timeout.
func TestSlowBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		agent, calls, began := server.NewMCPServer("agent", "1"), 0, time.Now()
		Register(agent, Handlers{OnFeedback: func(context.Context, Feedback) error {
			calls++
			<-time.After(batchTime - time.Second)
			return nil
		}})
		statuses := callBatch(t, agent, 4)
		if !slices.Equal(statuses, []string{StatusAccepted, StatusAccepted, StatusRetry, StatusRetry}) {
			t.Errorf("%q", statuses)
		}
		if took := time.Since(began); calls != 2 || took > 2*batchTime {
			t.Errorf("%d calls in %s", calls, took)
		}
	})
}

// TestBatchBehindRunningHandler checks that a handler that does not end delays a batch with its delivery for a bounded
// time, so that Herald gets the results of the other deliveries, and that the log has the cause.
func TestBatchBehindRunningHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		agent, release, running, log := server.NewMCPServer("agent", "1"), make(chan struct{}), 0, &strings.Builder{}
		Register(agent, Handlers{OnFeedback: func(context.Context, Feedback) error {
			if running++; running == 1 {
				<-release
			}
			return nil
		}}, WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		go callBatch(t, agent, 1)
		synctest.Wait()
		began := time.Now()
		if statuses := callBatch(t, agent, 3); !slices.Equal(statuses, []string{StatusRetry, StatusAccepted, StatusAccepted}) {
			t.Errorf("%q", statuses)
		}
		if took := time.Since(began); took > batchTime {
			t.Errorf("it took %s", took)
		}
		if !strings.Contains(log.String(), errStillRunning.Error()) {
			t.Errorf("the log has no cause: %q", log)
		}
		close(release)
	})
}

// callBatch calls the batch tool with n pieces of feedback, of one client each, and returns the statuses of the results.
func callBatch(t *testing.T, agent *server.MCPServer, n int) (statuses []string) {
	var elements []string
	for i := range n {
		elements = append(elements, fmt.Sprintf(`{"value":"95","valueDecimals":0,"tag1":"","tag2":"","clientAddress":"0x%039dA",
			"feedbackIndex":1,"fileUri":null,"fileHash":null,"fileContent":null,"fileVerification":"not_given","fileSource":null,
			"blockNumber":null,"timestamp":null,"agentId":"42","agentRegistry":"eip155:1:0x00000000000000000000000000000000000000AA",
			"chainId":1,"transactionHash":null,"logIndex":0,"endpoint":"","deliveryId":"5b0e1c1e-9dad-41d1-80b4-00c04fd430c%d"}`, i, i))
	}
	answer, err := json.Marshal(agent.HandleMessage(t.Context(), json.RawMessage(`{"jsonrpc":"2.0","id":1,"method":"tools/call",
		"params":{"name":"agent.receiveFeedbackBatch","arguments":{"deliveries":[`+strings.Join(elements, ",")+`]}}}`)))
	var decoded struct {
		Result struct{ StructuredContent struct{ Results []Result } }
	}
	if err = errors.Join(err, json.Unmarshal(answer, &decoded)); err != nil {
		t.Errorf("%s: %v", answer, err)
	}
	for _, r := range decoded.Result.StructuredContent.Results {
		statuses = append(statuses, r.Status)
	}
	return statuses
}

// TestMemoryStoreIsBounded checks that the store evicts the oldest ids beyond its limit.
func TestMemoryStoreIsBounded(t *testing.T) {
	t.Parallel()
	s := NewMemoryStore(3)
	for i := range 10 {
		for range 2 { // a repeated id takes no place
			if err := s.Remember(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 10 {
		if known, _ := s.Processed(t.Context(), fmt.Sprint(i)); known != (i >= 7) {
			t.Errorf("%d: known %t", i, known)
		}
	}
	if len(s.known) != 3 || len(s.order) != 3 {
		t.Errorf("%d ids, %d in order", len(s.known), len(s.order))
	}
}
