package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
)

// batchAgent is an mcp-go server that accepts several deliveries in one call.
type batchAgent struct {
	URL string

	// result answers a call of the batch tool; nil: it accepts each delivery.
	result    func(items []batchItem) (*mcp.CallToolResult, error)
	gate      func(n int) // called before a call of the batch tool is answered; nil: no delay
	onUnknown string      // value in the servers file; empty: not set
	// before is called with each request, its length, and its id if it calls the batch tool. It returns true if it has
	// answered the request.
	before func(w http.ResponseWriter, r *http.Request, length int, id string) bool

	mu      sync.Mutex
	batches [][]batchItem
	metas   []mcp.CallToolRequest
	singles []string
}

// batchItem contains the fields of a delivery that the agent reads.
type batchItem struct {
	DeliveryID    string `json:"deliveryId"`
	ClientAddress string `json:"clientAddress"`
	FeedbackIndex int    `json:"feedbackIndex"`
}

const batchSchema = `{"type":"object","properties":{"deliveries":{"type":"array","maxItems":%d,"items":{"type":"object",
	"properties":{"deliveryId":{"type":"string"},"clientAddress":{"type":"string"},"feedbackIndex":{"type":"integer"},"tag1":{"type":"string"},"fileContent":{}},
	"required":["deliveryId"],"additionalProperties":false}}},"required":["deliveries"],"additionalProperties":false}`

func newBatchAgent(t testing.TB, most int, adapt ...func(*batchAgent)) *batchAgent {
	t.Helper()
	a := &batchAgent{}
	for _, f := range adapt {
		f(a)
	}
	s := mcpserver.NewMCPServer("batch agent", "1", mcpserver.WithToolCapabilities(true))
	s.AddTool(mcp.NewToolWithRawSchema("agent.receiveFeedback", "", json.RawMessage(`{"type":"object"}`)),
		func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.singles = append(a.singles, r.GetString("deliveryId", ""))
			return mcp.NewToolResultText("thank you"), nil
		})
	s.AddTool(mcp.NewToolWithRawSchema(tools.Batch, "", json.RawMessage(fmt.Sprintf(batchSchema, most))),
		func(_ context.Context, r mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var args struct{ Deliveries []batchItem }
			if err := r.BindArguments(&args); err != nil {
				return nil, err
			}
			a.mu.Lock()
			a.batches, a.metas = append(a.batches, args.Deliveries), append(a.metas, r)
			n := len(a.batches)
			a.mu.Unlock()
			if a.gate != nil {
				a.gate(n)
			}
			if a.result != nil {
				return a.result(args.Deliveries)
			}
			return answerItems(args.Deliveries, "accepted")
		})
	server := mcpserver.NewStreamableHTTPServer(s)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var req struct {
			ID     json.RawMessage
			Method string
			Params struct{ Name string }
		}
		_ = json.Unmarshal(body, &req)
		if req.Method != "tools/call" || req.Params.Name != tools.Batch {
			req.ID = nil
		}
		if a.before == nil || !a.before(w, r, len(body), string(req.ID)) {
			server.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(web.Close)
	a.URL = web.URL + "/mcp"
	return a
}

// answerItems answers the items with the given statuses in turn.
func answerItems(items []batchItem, statuses ...string) (*mcp.CallToolResult, error) {
	var results []map[string]string
	for i, item := range items {
		results = append(results, map[string]string{"deliveryId": item.DeliveryID, "status": statuses[i%len(statuses)]})
	}
	return mcp.NewToolResultJSON(map[string]any{"results": results})
}

func (a *batchAgent) received() (batches [][]batchItem, singles []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([][]batchItem(nil), a.batches...), append([]string(nil), a.singles...)
}

// newBatchWorld returns a world with a worker without a chain, and one agent, whose endpoint is in the servers file.
// flood accepts feedback of new clients, each with indexes from 1 on, after change has modified the jobs.
func newBatchWorld(t testing.TB, a *batchAgent, adapt ...func(*Config)) (w *world, k *worker,
	flood func(clients, each int, change ...func(i int, j map[string]any)) []uuid.UUID) {
	w = newWorld(t)
	o := newOperator(w)
	k = w.newWorker(append([]func(*Config){func(c *Config) { c.Servers, c.Members = o.server, w.store }}, adapt...)...)
	clear(k.chains)
	id := w.register(nil)
	say := map[string]any{"url": a.URL}
	if a.onUnknown != "" {
		say["onUnknown"] = a.onUnknown
	}
	o.say(id, say)
	example, base := w.feedback(id), 0
	return w, k, func(clients, each int, change ...func(i int, j map[string]any)) (ids []uuid.UUID) {
		t.Helper()
		var jobs []map[string]any
		for i := range each {
			for c := range clients {
				j := with(example, nil)
				delete(j, "action")
				j["clientAddress"], j["feedbackIndex"] = fmt.Sprintf("0x%040x", 0xabc000+base+c), json.Number(strconv.Itoa(i+1))
				for _, f := range change {
					f(len(jobs), j)
				}
				jobs = append(jobs, j)
			}
		}
		base += clients
		for _, answer := range w.submit(jobs...) {
			if answer.Verdict != ledger.Accepted {
				t.Fatalf("%+v", answer)
			}
			ids = append(ids, answer.ID)
		}
		return ids
	}
}

// TestBatch: a flood for one agent needs few calls, and each delivery keeps its own row and attempt.
func TestBatch(t *testing.T) {
	t.Parallel()
	a := newBatchAgent(t, 50)
	w, k, flood := newBatchWorld(t, a)
	ids := flood(20, 10)
	w.serve(k)
	for _, id := range ids {
		d := w.until(id, outcome.Delivered)
		if d.Attempts != 1 || len(d.History) != 1 || d.History[0].Outcome != "delivered" || d.History[0].Stage != "call" {
			t.Errorf("%+v", d)
		}
	}
	batches, singles := a.received()
	got, largest := len(singles), 0
	for _, b := range batches {
		got += len(b)
		largest = max(largest, len(b))
		next := map[string]int{}
		for _, item := range b {
			if item.FeedbackIndex < next[item.ClientAddress] {
				t.Errorf("index %d comes after %d", item.FeedbackIndex, next[item.ClientAddress])
			}
			next[item.ClientAddress] = item.FeedbackIndex
		}
	}
	if got != len(ids) || largest != MaxBatch || len(batches)+len(singles) > 40 {
		t.Errorf("%d deliveries came in %d batches of at most %d and %d calls alone", got, len(batches), largest, len(singles))
	}
	heraldtest.Await(t, "nothing to run", func() bool { return k.runner.Running() == 0 })
}

// TestBatchesShareFetches: the members of all batches together fetch few files at a time, because each file may have
// 2 MiB. A member that has to wait for long leaves its batch.
func TestBatchesShareFetches(t *testing.T) {
	t.Parallel()
	const leaders, members = 3, 8
	var begun, running, most atomic.Int32
	files := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		for known := most.Load(); n > known && !most.CompareAndSwap(known, n); known = most.Load() {
		}
		begun.Add(1)
		<-r.Context().Done()
	}))
	t.Cleanup(files.Close)
	a := newBatchAgent(t, 1+members)
	w, k, flood := newBatchWorld(t, a)
	ids := flood(ledger.MaxDispatchedPerAgent+leaders*members, 1, func(i int, j map[string]any) {
		if i >= ledger.MaxDispatchedPerAgent {
			j["feedbackURI"] = fmt.Sprintf("%s/%d", files.URL, i)
		}
	})
	var leading sync.WaitGroup
	for i := range leaders {
		leading.Go(func() { w.lead(k, ids[i:]) })
	}
	leading.Wait()
	if n := most.Load(); n != maxMemberFetches {
		t.Errorf("%d of %d files were fetched at a time, want %d", n, begun.Load(), maxMemberFetches)
	}
	for _, id := range ids[:leaders] {
		w.shows(id, outcome.Delivered, "", 1)
	}
}

// slowMembers calls before each claim of members.
type slowMembers struct {
	MemberLedger
	before func()
}

func (l *slowMembers) ClaimMembers(ctx context.Context, leader *ledger.Claim, n int, lease time.Duration) ([]ledger.Member, error) {
	l.before()
	return l.MemberLedger.ClaimMembers(ctx, leader, n, lease)
}

// TestBatchLeases: while a worker tries to extend the leases of a batch, that of the leader becomes shorter than the call
// may take. Then the worker makes no call.
func TestBatchLeases(t *testing.T) {
	t.Parallel()
	a := newBatchAgent(t, 50)
	var passed atomic.Int64
	wait := func(d time.Duration) { passed.Add(int64(d)) }
	w, k, flood := newBatchWorld(t, a, func(c *Config) { // the lease is 20 s, its margin 10 s, and the timeout 5 s
		c.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
		c.Members = &slowMembers{c.Members, func() { wait(6 * time.Second) }}
		c.Ledger = &faulty{Ledger: c.Ledger, extend: func(context.Context, *ledger.Claim, time.Duration) error {
			wait(5 * time.Second)
			return errAway
		}}
	})
	ids := flood(9, 1) // eight are dispatched, and one follows
	w.lead(k, ids)
	batches, singles := a.received()
	heraldtest.Equal(t, "time that passed", time.Duration(passed.Load()), 16*time.Second)
	heraldtest.Equal(t, "calls", len(batches)+len(singles), 0)
	w.shows(ids[8], outcome.Queued, "", 0)
}
