package delivery

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/memory"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
)

// silentUntil signals each call that begins, and delays its answer until finish is closed.
func silentUntil(begun chan<- bool, finish <-chan bool) func(*agent) {
	return onCall(func(_ int, _ http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
		begun <- true
		select {
		case <-finish:
		case <-r.Context().Done():
		}
		return false
	})
}

// TestLargeArgumentsInFlightAreBounded: the total size of large arguments in flight, to agents that do not answer, is
// bounded. A delivery beyond the bound waits at no cost and is delivered later. Small arguments do not wait. No second
// copy of the arguments is kept for the history.
func TestLargeArgumentsInFlightAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun, finish := make(chan bool, 8), make(chan bool)
	silence := silentUntil(begun, finish)
	silent, silentToo := newAgent(t, silence), newAgent(t, silence)
	well := newAgent(t)
	longest := make(chan int, 8)
	k := w.newWorker(func(c *Config) {
		c.MaxArgumentBytes, c.CallTimeout, c.Lease = 3<<19, 20*time.Second, 40*time.Second
		c.Ledger = &faulty{Ledger: c.Ledger, record: func(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
			longest <- len(o.Arguments)
			return w.store.Record(ctx, c, o)
		}}
	})
	// A file of 200 KiB becomes 1.2 MB of arguments. One of 40 KiB becomes 240 kB, and two such calls fit in the
	// budget.
	feedback := func(a *agent, text string) uuid.UUID {
		file := []byte(`"` + text + `"`)
		cid := w.gateway.AddFile(file)
		j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), URI: "ipfs://" + cid.String(), Hash: crypto.Keccak256Hash(file)})
		return w.accept(j)
	}
	large := strings.Repeat("<", 40<<10)
	first, second, next, small, huge := feedback(silent, large+"1"), feedback(silentToo, large+"2"), feedback(well, large+"3"), feedback(well, "small"),
		feedback(well, strings.Repeat("<", 200<<10))

	done := []<-chan string{k.goDeliver(first, 1), k.goDeliver(second, 1)}
	heraldtest.Receive(t, "a call", begun)
	heraldtest.Receive(t, "another", begun)
	for _, id := range []uuid.UUID{next, huge} {
		k.mustDeliver(id, 1, "waiting agent_busy")
		heraldtest.Equal(t, "the history", len(w.shows(id, outcome.Waiting, outcome.AgentBusy, 0).History), 0)
	}
	k.mustDeliver(small, 1, "")
	close(finish)
	for _, ended := range done {
		heraldtest.Equal(t, "the note", heraldtest.Receive(t, "the end", ended), "")
	}
	for _, id := range []uuid.UUID{next, huge} { // arguments beyond the budget are sent when no others are in flight
		w.due(id)
		k.mustDeliver(id, 1, "")
		w.shows(id, outcome.Delivered, "", 1)
	}
	close(longest)
	for n := range longest {
		if n > 16<<10 {
			t.Errorf("an attempt holds %d bytes for its history", n)
		}
	}
	heraldtest.Equal(t, "bytes that are held", k.executor.arguments.Held(), 0)
}

// TestArgumentsOfTheUnbound: large arguments of unbound agents do not use the share of the agents that are bound to the
// same endpoint.
func TestArgumentsOfTheUnbound(t *testing.T) {
	t.Parallel()
	const most = 64 << 20
	e := &Executor{Config: Config{MaxArgumentBytes: most}, arguments: memory.NewBudget(most)}
	at := func(unbound bool) *attempt {
		return &attempt{claim: &ledger.Claim{}, endpoint: resolvedEndpoint{unbound: unbound,
			Endpoint: mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: "https://victim.example/mcp"}}}
	}
	if release, err := e.reserveArguments(at(true), 8<<20); release == nil || err != nil {
		t.Fatal(err)
	}
	if release, err := e.reserveArguments(at(false), 70<<10); release == nil || err != nil {
		t.Errorf("beside one that is not bound: %v", err)
	}
	if release, _ := e.reserveArguments(at(true), 70<<10); release != nil {
		t.Error("those that are not bound have no bound at the origin")
	}
}
