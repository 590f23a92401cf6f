package delivery

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// operator writes a servers file of the test's own.
type operator struct {
	*servers.Set
	w       *world
	path    string
	mu      sync.Mutex
	entries map[string]any
}

func newOperator(w *world) *operator {
	w.t.Helper()
	o := &operator{w: w, path: filepath.Join(w.t.TempDir(), "servers.json"), entries: map[string]any{}}
	o.write()
	o.Set = must(servers.Open(servers.Config{Path: o.path, Logger: w.logger(), Env: func(name string) (string, bool) { return "hunter2" + name, true }}))
	return o
}

func (o *operator) write() {
	heraldtest.Must(o.w.t, os.WriteFile(o.path, asJSON(map[string]any{"servers": o.entries}), 0o600))
}

// say sets an agent's entry in the file and reloads it.
func (o *operator) say(agent *big.Int, entry map[string]any) {
	o.w.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.entries[fmt.Sprintf("%d:%s", o.w.net.ChainID(), agent)] = entry
	o.write()
	o.ReloadIfChanged()
	if _, ok := o.Lookup(o.w.net.ChainID(), agent.String()); !ok {
		o.w.t.Fatalf("the file says nothing about %s: %s", agent, o.w.log)
	}
}

func (o *operator) server(a erc8004.Agent) (servers.Server, bool) { return o.Lookup(a.ChainID, a.ID) }

func (w *world) agentRow(id *big.Int) records.AgentRow {
	w.t.Helper()
	return must(records.New(w.store).AgentRow(heraldtest.Within(w.t, 20*time.Second), w.agentOf(id)))
}

func (w *world) agentOf(id *big.Int) erc8004.Agent {
	return erc8004.Agent{ChainID: w.net.ChainID(), Registry: strings.ToLower(w.net.Deployment().Identity.Hex()), ID: id.String()}
}

// feedback returns a job for an agent.
func (w *world) feedback(id *big.Int) map[string]any {
	w.t.Helper()
	j, _ := w.rate(devnet.Feedback{AgentID: id})
	return j
}

// TestServersFile checks the effect of the servers file on deliveries. The worker has no chain.
func TestServersFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := newOperator(w)
	k := w.newWorker(func(c *Config) {
		c.Servers = o.server
		c.ToolAliases = map[string][]string{"agent.receiveFeedback": {"feedback.receive"}}
	})
	clear(k.chains)
	w.serve(k)
	releaser := must(maintenance.NewReleaser(maintenance.ReleaserConfig{Ledger: w.store, Records: records.New(w.store), Dispatcher: w.dispatcher, Logger: w.logger(),
		Disabled: func(a erc8004.Agent) bool { s, ok := o.server(a); return ok && s.Disables() }}))

	w.runParallel(t, "it wins over the chain", func(t *testing.T, w *world) {
		a, id := newAgent(t), w.register(at("https://127.0.0.1:1/nobody"))
		o.say(id, map[string]any{"url": a.URL + "/mcp/${SEGMENT}?key=${KEY}", "auth": map[string]any{"type": "bearer", "token": "${TOKEN}"}})
		d := w.until(w.accept(w.feedback(id)), outcome.Delivered)
		heraldtest.Equal(t, "the row shows", d.Endpoint, a.URL+"/mcp/${SEGMENT}")
		heraldtest.Equal(t, "it came with", a.received()[0].header.Get("Authorization"), "Bearer hunter2TOKEN")
		r := w.agentRow(id)
		if r.State != records.StateConnected || r.Endpoint != d.Endpoint || r.Protocol != "2025-11-25" ||
			!strings.Contains(string(r.Tools), `"agent.receiveFeedback"`) || !strings.Contains(string(r.ServerInfo), "test agent") {
			t.Errorf("%+v", r)
		}
		heraldtest.Lacks(t, "the row, the agent and the log", string(asJSON(d))+string(asJSON(r))+w.log.String(), "hunter2")
		_, s := k.seen(d.ID, "resolve")
		heraldtest.Equal(t, "the time line", s.Detail, d.Endpoint+" from the servers file")
	})

	w.runParallel(t, "the job's own endpoint wins over it", func(t *testing.T, w *world) {
		a, other := newAgent(t), newAgent(t)
		id := w.register(nil)
		o.say(id, map[string]any{"url": other.URL})
		d := w.until(w.accept(with(w.feedback(id), own(a.URL, nil))), outcome.Delivered)
		if d.Endpoint != a.URL || len(a.received()) != 1 || len(other.received()) != 0 {
			t.Errorf("%s, %d and %d calls", d.Endpoint, len(a.received()), len(other.received()))
		}
	})

	w.runParallel(t, "disabled and enabled", func(t *testing.T, w *world) {
		a, id := newAgent(t), w.register(nil)
		o.say(id, map[string]any{"url": a.URL, "enabled": false})
		first := w.accept(w.feedback(id))
		second := w.accept(with(w.feedback(id), own(a.URL, nil)))
		for _, one := range []uuid.UUID{first, second} {
			w.ends(one, outcome.Held, outcome.AgentDisabled, 0, "servers file")
		}
		if r := w.agentRow(id); r.State != records.StateDisabled || !r.Enabled || r.Open[outcome.Held] != 2 {
			t.Errorf("%+v", r)
		}
		heraldtest.Must(t, releaser.Release(t.Context())) // the file still disables the agent
		w.shows(first, outcome.Held, outcome.AgentDisabled, 0)
		heraldtest.Equal(t, "calls", len(a.received()), 0)
		o.say(id, map[string]any{"url": a.URL})
		heraldtest.Must(t, releaser.Release(t.Context()))
		for _, one := range []uuid.UUID{first, second} {
			w.until(one, outcome.Delivered)
		}
		heraldtest.Equal(t, "the agent's state", w.agentRow(id).State, records.StateConnected)
	})

	w.runParallel(t, "a tool that it does not list", func(t *testing.T, w *world) {
		a, id := newAgent(t), w.register(nil)
		o.say(id, map[string]any{"url": a.URL, "tools": []string{"agent.receiveRevocation"}})
		w.ends(w.accept(w.feedback(id)), outcome.Rejected, outcome.ToolNotFound, 1,
			"the servers file does not list agent.receiveFeedback")
		if r := w.agentRow(id); r.State != records.StatePending || r.LastError != "" || r.Epoch != 0 {
			t.Errorf("the agent is blamed: %+v", r)
		}
	})

	w.runParallel(t, "an alias of the operator's, and it alone", func(t *testing.T, w *world) {
		a := newAgent(t, func(a *agent) { a.tool = "feedback.receive" })
		id := w.register(nil)
		o.say(id, map[string]any{"url": a.URL, "tools": []string{"feedback.receive"}})
		heraldtest.Equal(t, "the tool", w.until(w.accept(w.feedback(id)), outcome.Delivered).ToolName, "feedback.receive")
	})

	w.runParallel(t, "time and doubt", func(t *testing.T, w *world) {
		a, id := newAgent(t, hangs()), w.register(nil)
		o.say(id, map[string]any{"url": a.URL, "timeoutMs": 3000, "onUnknown": "hold"})
		d := w.until(w.accept(w.feedback(id)), outcome.Held)
		if d.Reason != "held_unknown" || len(d.History) != 1 || !strings.Contains(d.History[0].Error, "did not answer within 3 s") {
			t.Errorf("%+v", d)
		}
	})

	w.runParallel(t, "an endpoint for an agent of a chain without one", func(t *testing.T, w *world) {
		a, id := newAgent(t), w.register(nil)
		o.say(id, map[string]any{"timeoutMs": 1000}) // the chain is asked for the endpoint
		d := w.ends(w.accept(w.feedback(id)), outcome.Held, outcome.ChainUnconfigured, 0)
		o.say(id, map[string]any{"url": a.URL})
		releaser.MarkCallable([]erc8004.Agent{w.agentOf(id)})
		heraldtest.Must(t, releaser.Release(heraldtest.Within(t, 20*time.Second)))
		w.until(d.ID, outcome.Delivered)
	})
}

// TestDisabledBothWays: if both its row and the file disable an agent, its deliveries are released only when both
// enable it.
func TestDisabledBothWays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := newOperator(w)
	k := w.newWorker(func(c *Config) { c.Servers = o.server })
	w.serve(k)
	a := newAgent(t)
	id := w.register(nil)
	o.say(id, map[string]any{"url": a.URL, "enabled": false})
	w.enable(id, false)
	one := w.accept(w.feedback(id))
	w.until(one, outcome.Held)
	heraldtest.Equal(t, "released", w.enable(id, true), 1)
	heraldtest.AwaitState(t, func() bool { d := w.row(one); return d.Status == outcome.Held && d.Dispatch == 2 }, func() string { return fmt.Sprintf("%+v", w.row(one)) })
	heraldtest.Equal(t, "calls", len(a.received()), 0)
}

// enable enables or disables an agent, as an operator does.
func (w *world) enable(id *big.Int, enabled bool) (released int) {
	w.t.Helper()
	ctx := heraldtest.Within(w.t, 20*time.Second)
	released, tasks, err := records.New(w.store).EnableAgent(ctx, w.agentOf(id), enabled)
	heraldtest.Must(w.t, err)
	w.dispatcher.Dispatch(ctx, tasks)
	return released
}

// TestRememberedProtocol: the protocol of the agent's last answer is tried first if neither registration nor file names
// one.
func TestRememberedProtocol(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.newWorker()
	w.serve(k)
	for want, doc := range map[string]map[string]any{"server/discover": {"name": "MCP"}, "initialize": {"name": "MCP", "version": "2025-11-25"}} {
		asked := make(chan string, 1)
		a := newAgent(t, onAny(func(method string, rw http.ResponseWriter, _ *http.Request, id json.RawMessage) bool {
			select {
			case asked <- method:
			default:
			}
			if method == "server/discover" {
				replyError(rw, id, -32601, "what is this")
				return true
			}
			return false
		}))
		doc["endpoint"] = a.URL
		id := w.register(map[string]any{"name": "agent", "services": []any{doc}})
		heraldtest.Must(t, records.New(w.store).ObserveAgent(t.Context(), w.agentOf(id),
			records.AgentObservation{Protocol: "2026-07-28"}))
		w.until(w.accept(w.feedback(id)), outcome.Delivered)
		heraldtest.Equal(t, "the first request", heraldtest.Receive(t, "a request", asked), want)
		if r := w.agentRow(id); r.Protocol != "2025-11-25" || r.Registration == nil || r.Name() != "agent" || r.Registration.From != "services[0]" {
			t.Errorf("%+v", r)
		}
	}
}

// TestToolsAreStoredOncePerListing: an agent's tools are stored after a new listing, not with each delivery.
func TestToolsAreStoredOncePerListing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.newWorker()
	agent := w.agentOf(big.NewInt(7))
	set := mcpcall.ToolSet{Tools: []mcpcall.Tool{{Name: "a", InputSchema: json.RawMessage(`{}`)}, {Name: "b"}}, Protocol: "p",
		Server: mcpcall.ServerInfo{Name: "n", Version: "1"}, Listed: time.Unix(1, 0)}
	one := &attempt{claim: claimOf(agent), call: preparedCall{listing: &set}}
	for range 2 { // until it is recorded
		o := k.executor.describeAttempt(one)
		if string(o.Tools) != `[{"name":"a","schema":true},{"name":"b","schema":false}]` || string(o.ServerInfo) != `{"name":"n","version":"1"}` || o.Protocol != "p" {
			t.Errorf("%+v", o)
		}
	}
	k.executor.observed.Add(agent, set.Listed)
	if o := k.executor.describeAttempt(one); o.Tools != nil || o.ServerInfo != nil || o.Protocol != "p" {
		t.Errorf("recorded again: %+v", o)
	}
	set.Listed = time.Unix(2, 0)
	heraldtest.Equal(t, "a new list is recorded", k.executor.describeAttempt(one).Tools != nil, true)
}

// claimOf returns a claim of a delivery for an agent.
func claimOf(a erc8004.Agent) *ledger.Claim {
	id, _ := new(big.Int).SetString(a.ID, 10)
	return &ledger.Claim{Job: job.Job{ChainID: a.ChainID, IdentityRegistry: common.HexToAddress(a.Registry), AgentID: id}}
}
