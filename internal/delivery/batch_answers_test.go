package delivery

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/content"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/mark3labs/mcp-go/mcp"
)

// lead accepts a flood and delivers its first delivery, which leads a batch with most of the others.
func (w *world) lead(k *worker, ids []uuid.UUID) {
	w.t.Helper()
	if _, err := k.deliver(heraldtest.Within(w.t, 30*time.Second), ids[0], 1); err != nil {
		w.t.Logf("the leader: %v", err)
	}
}

// TestBatchAnswers: each delivery of a batch gets the outcome that the answer states for it. If Herald panics while it
// decides the outcome of one, the leader's or another's, the outcomes of the others are recorded.
func TestBatchAnswers(t *testing.T) {
	t.Parallel()
	const clients = 18 // seven are dispatched as well as the leader, and do not follow
	type fate struct {
		status outcome.Status
		reason outcome.Reason
	}
	delivered, rejected := fate{outcome.Delivered, ""}, fate{outcome.Rejected, outcome.ToolError}
	later, unknown := fate{outcome.Waiting, outcome.ServerError}, fate{outcome.Waiting, outcome.Unknown}
	running := fate{outcome.Running, ""} // until its lease expires
	only := func(which int, f fate) func(i int) fate {
		return func(i int) fate {
			if i == which {
				return f
			}
			return delivered
		}
	}
	retry := func(which int) func(items []batchItem) (*mcp.CallToolResult, error) {
		return func(items []batchItem) (*mcp.CallToolResult, error) {
			statuses := slices.Repeat([]string{"accepted"}, len(items))
			statuses[which] = "retry"
			return answerItems(items, statuses...)
		}
	}
	byTurns := func(fates ...fate) func(i int) fate { return func(i int) fate { return fates[i%len(fates)] } }

	for name, c := range map[string]struct {
		result  func(items []batchItem) (*mcp.CallToolResult, error)
		before  func(http.ResponseWriter, *http.Request, int, string) bool
		policy  string
		timeout time.Duration
		panics  bool             // when it decides the outcome of one that the agent wants later
		want    func(i int) fate // of item i
	}{
		"by turns": {result: func(items []batchItem) (*mcp.CallToolResult, error) {
			return answerItems(items, "accepted", "rejected", "retry", "perhaps")
		}, want: byTurns(delivered, rejected, later, unknown)},
		"left out": {result: func(items []batchItem) (*mcp.CallToolResult, error) { return answerItems(items[:2], "accepted") },
			want: func(i int) fate {
				if i < 2 {
					return delivered
				}
				return unknown
			}},
		"left out, and the policy is hold": {result: func(items []batchItem) (*mcp.CallToolResult, error) { return answerItems(nil) },
			policy: policy.OnUnknownHold, want: byTurns(fate{outcome.Held, outcome.HeldUnknown})},
		"as text": {result: func(items []batchItem) (*mcp.CallToolResult, error) {
			r, err := answerItems(items, "accepted", "rejected")
			r.StructuredContent = nil
			return r, err
		}, want: byTurns(delivered, rejected)},
		"as text, which FastMCP wraps in structuredContent": {result: func(items []batchItem) (*mcp.CallToolResult, error) {
			r, err := answerItems(items, "accepted", "rejected")
			text, _ := r.Content[0].(mcp.TextContent)
			r.StructuredContent = map[string]string{"result": text.Text}
			return r, err
		}, want: byTurns(delivered, rejected)},
		"an error": {result: func([]batchItem) (*mcp.CallToolResult, error) { return mcp.NewToolResultError("no"), nil },
			want: byTurns(later)}, // one by one, so that a single failure does not end all
		"hangs": {before: hangUp(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), timeout: 500 * time.Millisecond,
			want: byTurns(unknown)},
		"dies in the call": {before: hangUp(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), want: byTurns(unknown)},
		"503": {before: hangUp(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }),
			want: byTurns(later)},
		"a panic about the leader": {result: retry(0), panics: true, want: only(0, running)},
		"a panic about a member":   {result: retry(3), panics: true, want: only(3, running)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newBatchAgent(t, 50, func(a *batchAgent) { a.result, a.before, a.onUnknown = c.result, c.before, c.policy })
			w, k, flood := newBatchWorld(t, a, func(cfg *Config) {
				if c.timeout > 0 {
					cfg.CallTimeout = c.timeout
				}
				if c.panics {
					cfg.Random = func() float64 { panic("an outcome is decided") }
				}
			})
			ids := flood(clients, 1)
			w.lead(k, ids)
			order := append([]uuid.UUID{ids[0]}, ids[8:]...) // oldest first
			batches, _ := a.received()                       // none, if before answered
			for i, item := range slices.Concat(batches...) {
				heraldtest.Equal(t, fmt.Sprint("item ", i, " of the line"), item.DeliveryID, order[i].String())
			}
			for i, id := range order {
				want := c.want(i)
				d := w.shows(id, want.status, want.reason, 1)
				if len(d.History) != 1 || want != running && d.History[0].Stage != "call" {
					t.Errorf("item %d: %+v", i, d.History)
				}
				if want == delivered && !strings.Contains(string(d.Result), id.String()) {
					t.Errorf("item %d keeps %s of the answer", i, d.Result)
				}
			}
			about := w.row(ids[0])
			hours, err := records.New(w.store).AgentStats(t.Context(), erc8004.Agent{ChainID: about.ChainID,
				Registry: about.IdentityRegistry, ID: about.AgentID}, time.Time{})
			if p95 := records.SummarizeHours(hours, time.Time{}).P95Ms; err != nil || c.timeout > 0 && *p95 > float64(c.timeout.Milliseconds()) {
				t.Errorf("the calls took longer than their timeout: %v ms, %v", *p95, err)
			}
			for _, id := range ids[1:8] { // these did not follow
				w.shows(id, outcome.Queued, "", 0)
			}
		})
	}
}

// hangUp makes do handle the calls of the batch tool instead of the agent.
func hangUp(do http.HandlerFunc) func(http.ResponseWriter, *http.Request, int, string) bool {
	return func(w http.ResponseWriter, r *http.Request, _ int, id string) bool {
		if id != "" {
			do(w, r)
		}
		return id != ""
	}
}

// TestBatchRefused: a server that refuses calls of its batch tool gets its deliveries one by one, in one attempt each,
// and no second batch. A server that refuses long requests gets shorter batches.
func TestBatchRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refuse func(w http.ResponseWriter, length int, id string) bool
		again  bool
	}{
		"no such tool": {func(w http.ResponseWriter, _ int, id string) bool {
			replyError(w, json.RawMessage(id), -32602, "unknown tool")
			return true
		}, false},
		"too long": {func(w http.ResponseWriter, length int, _ string) bool {
			if length > 5000 {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
			return length > 5000
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refused atomic.Int32
			a := newBatchAgent(t, 50, func(a *batchAgent) {
				a.before = func(w http.ResponseWriter, _ *http.Request, length int, id string) bool {
					isRefused := id != "" && c.refuse(w, length, id)
					if isRefused {
						refused.Add(1)
					}
					return isRefused
				}
			})
			w, k, flood := newBatchWorld(t, a)
			ids := flood(40, 1)
			w.lead(k, ids)
			heraldtest.Equal(t, "refused calls", refused.Load(), 1)
			w.serve(k)
			for _, id := range ids {
				heraldtest.Equal(t, "the history", len(w.ends(id, outcome.Delivered, "", 1).History), 1)
			}
			batches, singles := a.received()
			if !c.again && (len(batches) > 0 || len(singles) != len(ids) || refused.Load() != 1) {
				t.Errorf("%d batches after %d refusals, %d alone", len(batches), refused.Load(), len(singles))
			}
			if c.again && len(batches) == 0 {
				t.Errorf("no shorter batch was tried: %d alone", len(singles))
			}
		})
	}
}

// TestBatchRefusedAtStop: an agent refuses a batch while the worker stops, so that no other call follows. No delivery
// has used an attempt, or counts as one with which the agent was called.
func TestBatchRefusedAtStop(t *testing.T) {
	t.Parallel()
	var passed atomic.Int64
	var k *worker
	a := newBatchAgent(t, 50, func(a *batchAgent) {
		a.before = hangUp(func(w http.ResponseWriter, _ *http.Request) {
			k.runner.StopClaiming()
			passed.Store(int64(callsAfterStop + time.Second))
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		})
	})
	w, served, flood := newBatchWorld(t, a, func(c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
	})
	k = served
	ids := flood(12, 1)
	w.lead(k, ids)
	w.shows(ids[0], outcome.Waiting, outcome.AgentBusy, 0, "the worker stops")
	for _, id := range ids[8:] {
		w.shows(id, outcome.Queued, "", 0)
	}
}

// TestBatchFallsOut: a member with an invalid event or file ends on its own and is in no call. The others are
// delivered.
func TestBatchFallsOut(t *testing.T) {
	t.Parallel()
	a := newBatchAgent(t, 50)
	w, k, flood := newBatchWorld(t, a, func(c *Config) { c.HashPolicy = content.HashStrict })
	const forged, missing, named, template = 12, 13, 14, 15
	ids := flood(20, 1, func(i int, j map[string]any) {
		switch i {
		case forged:
			j["feedbackURI"], j["feedbackHash"] = "data:application/json,{}", common.HexToHash("0x01").Hex()
		case missing:
			j["feedbackURI"] = "ipfs://bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"
		case named:
			j["action"] = map[string]any{"timeoutMs": 1000}
		case template:
			j["action"] = map[string]any{"payloadTemplate": map[string]any{"note": "{{tag1}}"}}
		}
	})
	w.lead(k, ids)
	batches, _ := a.received()
	if len(batches) != 1 || len(batches[0]) != 20-7-4 {
		t.Fatalf("%d batches: %v", len(batches), batches)
	}
	for _, i := range []int{0, 8, 19} {
		w.shows(ids[i], outcome.Delivered, "", 1)
	}
	w.shows(ids[forged], outcome.Rejected, outcome.HashMismatch, 1)
	w.shows(ids[missing], outcome.Waiting, outcome.ContentUnavailable, 1)
	w.shows(ids[named], outcome.Queued, "", 0)
	w.shows(ids[template], outcome.Queued, "", 0)
}

// TestBatchMeta: the agent gets the ids of the batch's deliveries, and at most as many deliveries as its schema allows.
func TestBatchMeta(t *testing.T) {
	t.Parallel()
	a := newBatchAgent(t, 5)
	w, k, flood := newBatchWorld(t, a)
	ids := flood(2, 10)
	w.lead(k, ids)
	batches, _ := a.received()
	if len(batches) != 1 || len(batches[0]) != 5 {
		t.Fatalf("batches of %v", batches)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	list, _ := a.metas[0].Params.Meta.AdditionalFields[tools.MetaKey].([]any)
	if len(list) != 5 {
		t.Fatalf("_meta %v", a.metas[0].Params.Meta.AdditionalFields)
	}
	for i, item := range batches[0] {
		about, _ := list[i].(map[string]any)
		d := w.row(uuid.MustParse(item.DeliveryID))
		if about["id"] != item.DeliveryID || about["key"] != d.Key || about["attempt"] != 1.0 || about["replay"] != false {
			t.Errorf("_meta of item %d says %v", i, about)
		}
		if len(d.History) != 1 || !strings.Contains(string(d.History[0].Arguments), item.DeliveryID) || d.ToolName != tools.Batch {
			t.Errorf("item %d keeps %+v, called with %s", i, d.History, d.ToolName)
		}
	}
}

// TestSortMembers: if a delivery of a client waits or is released uncalled, its later deliveries are not called
// either.
func TestSortMembers(t *testing.T) {
	t.Parallel()
	e := &Executor{Config: Config{Now: time.Now, Random: func() float64 { return 0 }}}
	e.Schedule = must(outcome.NewSchedule([]time.Duration{time.Second}))
	follow := func(client byte, size int, do ...func(*member)) *member {
		f := &member{size: size, attempt: &attempt{claim: &ledger.Claim{Budget: 1}}}
		f.claim.Job.ClientAddress = common.BytesToAddress([]byte{client})
		for _, d := range do {
			d(f)
		}
		return f
	}
	waits := func(f *member) { f.failure = fmt.Errorf("no: %w", io.ErrUnexpectedEOF) }
	ends := func(f *member) { f.failure = ledger.ErrUnreadableJob }
	back := func(f *member) { f.back, f.failure = true, io.ErrUnexpectedEOF }
	all := []*member{follow(1, 10), follow(2, 10, waits), follow(2, 10), follow(3, 10, ends), follow(3, 10), follow(4, 10, back), follow(4, 10),
		follow(5, 10), follow(1, 71), follow(6, 10)}
	b := &batch{}
	members, given := b.sortMembers(e, all, 100)
	positions := func(list []*member) (out []int) {
		for _, f := range list {
			out = append(out, slices.Index(all, f))
		}
		return out
	}
	got := [][]int{positions(members), positions(b.failed), positions(given)}
	heraldtest.Equal(t, "they go, end alone, and are given back", got, [][]int{{0, 4, 7}, {1, 3}, {2, 5, 6, 8, 9}})
}

// TestBatchPanicBeforeCall: if Herald panics before a call of several deliveries, no member counts as delivered.
func TestBatchPanicBeforeCall(t *testing.T) {
	t.Parallel()
	const clients, unavailable = 12, 10
	a := newBatchAgent(t, 50)
	var panicked atomic.Bool
	w, k, flood := newBatchWorld(t, a, func(c *Config) {
		c.Random = func() float64 {
			if !panicked.Swap(true) {
				panic("the outcome of the member without a file is decided")
			}
			return 0
		}
	})
	ids := flood(clients, 1, func(i int, j map[string]any) {
		if i == unavailable {
			j["feedbackURI"] = "http://127.0.0.1:1/file.json"
		}
	})
	w.lead(k, ids)
	batches, singles := a.received()
	heraldtest.Equal(t, "calls", len(batches)+len(singles), 0)
	w.shows(ids[0], outcome.Waiting, outcome.InternalError, 1)
	for _, id := range ids[8:] {
		w.shows(id, outcome.Running, "", 1) // until its lease expires
	}
}
