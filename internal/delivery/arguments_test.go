package delivery

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/devnet"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
)

// TestLargeArgumentsInFlightAreBounded: agents that take large arguments and do not answer hold so many bytes in all. Who comes with more waits
// at no cost and is delivered later; small arguments do not wait. Nobody holds a second copy for the history.
func TestLargeArgumentsInFlightAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun, finish := make(chan bool, 8), make(chan bool)
	silent := newAgent(t, onCall(func(_ int, _ http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
		begun <- true
		select {
		case <-finish:
		case <-r.Context().Done():
		}
		return false
	}))
	well := newAgent(t)
	longest := make(chan int, 8)
	k := w.newWorker(func(c *Config) {
		c.MaxArgumentBytes, c.CallTimeout, c.Lease = 3<<19, 20*time.Second, 40*time.Second
		c.Ledger = &faulty{Ledger: c.Ledger, record: func(ctx context.Context, c *store.Claim, o store.Outcome) (store.Recorded, error) {
			longest <- len(o.Arguments)
			return w.store.Record(ctx, c, o)
		}}
	})
	// 200 KiB of the file are 1.2 MB of arguments; 40 KiB are 240 kB, of which two calls have room.
	feedback := func(a *agent, text string) uuid.UUID {
		file := []byte(`"` + text + `"`)
		cid := must(w.gateway.AddFile(file))
		j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), URI: "ipfs://" + cid.String(), Hash: crypto.Keccak256Hash(file)})
		return w.accept(j)
	}
	large := strings.Repeat("<", 40<<10)
	first, second, next, small, huge := feedback(silent, large+"1"), feedback(silent, large+"2"), feedback(well, large+"3"), feedback(well, "small"),
		feedback(well, strings.Repeat("<", 200<<10))

	done := make(chan string, 2)
	for _, id := range []uuid.UUID{first, second} {
		go func() {
			note, err := k.runner.Deliver(t.Context(), id, 1)
			if err != nil {
				note = err.Error()
			}
			done <- note
		}()
	}
	receive(t, "a call", begun)
	receive(t, "another", begun)
	for _, id := range []uuid.UUID{next, huge} {
		if note, err := k.runner.Deliver(t.Context(), id, 1); err != nil || !strings.HasPrefix(note, "waiting agent_busy") {
			t.Errorf("beyond the bound: %q, %v", note, err)
		}
		if d := w.row(id); d.Status != store.Waiting || d.Attempts != 0 || len(d.History) != 0 {
			t.Errorf("%s, %d attempts, %d in its history", d.Status, d.Attempts, len(d.History))
		}
	}
	if note, err := k.runner.Deliver(t.Context(), small, 1); err != nil || note != "" {
		t.Errorf("small arguments: %q, %v", note, err)
	}
	close(finish)
	for range 2 {
		if note := receive(t, "the end", done); note != "" {
			t.Error(note)
		}
	}
	for _, id := range []uuid.UUID{next, huge} { // arguments beyond the bound go when nothing else does
		w.exec(`UPDATE herald.deliveries SET next_attempt_at = now() WHERE id = $1`, id)
		if note, err := k.runner.Deliver(t.Context(), id, 2); err != nil || note != "" || w.row(id).Status != store.Delivered {
			t.Errorf("after the others: %q, %v", note, err)
		}
	}
	close(longest)
	for n := range longest {
		if n > 16<<10 {
			t.Errorf("an attempt holds %d bytes for its history", n)
		}
	}
	if !k.executor.arguments.TryAcquire(1 << 20) {
		t.Error("a share was not given back")
	}
}
