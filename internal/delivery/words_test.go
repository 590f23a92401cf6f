package delivery

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
)

// impatient returns a worker that waits at most the given time for any answer.
func (w *world) impatient(wait time.Duration) *worker {
	w.t.Helper()
	guard := guardtest.Loopback(w.t, guardtest.Resolver(w.t, nil))
	fetcher, resolve := w.newResolver(ipfs.Config{Guard: guard, Timeout: wait, TryTimeout: wait}, nil)
	pool := newPool(w.t, mcpcall.Config{Guard: guard, OpenTimeout: wait, Logger: w.logger()})
	return w.newWorker(func(c *Config) {
		c.Resolver, c.Fetcher, c.Caller = resolve, fetcher, pool
		c.Schedule = must(outcome.NewSchedule([]time.Duration{time.Hour}))
		c.CallTimeout = max(c.CallTimeout, wait)
		c.Lease = c.CallTimeout + c.LeaseMargin + time.Minute
	})
}

// told delivers once, and returns the texts in the row, the log and the web UI.
func (w *world) told(k *worker, id uuid.UUID) (d ledger.Delivery, line, task string) {
	w.t.Helper()
	note, err := k.deliver(w.t.Context(), id, 1)
	if task = note; err != nil {
		task = err.Error()
	}
	for text := range strings.Lines(w.log.String()) {
		if strings.Contains(text, "delivery attempted") && strings.Contains(text, id.String()) {
			line = text
		}
	}
	return w.row(id), line, task
}

// TestErrorMessages: for any failure of a delivery, the row, the log and the web UI describe it in Herald's words.
func TestErrorMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	list := append(guardtest.Failures(t, "did not answer within 3 s"), guardtest.Failing{Name: "no such name",
		URL: "https://" + guardtest.NoSuchName, Says: "DNS does not know the name " + guardtest.NoSuchName})
	workers := map[time.Duration]*worker{}
	for _, f := range list {
		if workers[f.Wait()] == nil {
			workers[f.Wait()] = w.impatient(f.Wait())
		}
	}
	for _, p := range urlPositions {
		for _, f := range list {
			k := workers[f.Wait()]
			w.runParallel(t, p.name+"/"+f.Name, func(t *testing.T, w *world) {
				d, line, task := w.told(k, p.put(w, f.URL+"/agent.json"))
				heraldtest.Contains(t, "the row", d.Error, f.Says)
				guardtest.RefuseGoWords(t, "the row", d.Error)
				guardtest.RefuseGoWords(t, "the log", line)
				guardtest.RefuseGoWords(t, "the web UI", task)
				for _, attempt := range d.History {
					guardtest.RefuseGoWords(t, "the attempt", attempt.Error)
				}
			})
		}
	}
}

// TestAttemptsSayWhatToDo: the log and the web UI name the next step for ended and held deliveries, and it is not
// stored. The error contains all that the next step needs.
func TestAttemptsSayWhatToDo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.newWorker()
	rated := func(w *world, f devnet.Feedback, adapt ...func(*agent)) uuid.UUID {
		f.AgentID = w.register(at(newAgent(w.t, adapt...).URL))
		j, _ := w.rate(f)
		return w.accept(j)
	}
	another := []byte(`{"text":"I never wrote this."}`)
	const onChain = "0x0000000000000000000000000000000000000000000000000000000000000001"
	for name, c := range map[string]struct {
		put    func(w *world) uuid.UUID
		reason outcome.Reason
		next   string
		says   []string
	}{
		"401": {func(w *world) uuid.UUID { return rated(w, devnet.Feedback{}, status(http.StatusUnauthorized)) }, outcome.AuthRequired,
			"store a token: worker token set 31337:", []string{"HTTP 401"}},
		"another file": {func(w *world) uuid.UUID {
			c := w.gateway.AddFile(another)
			return rated(w, devnet.Feedback{URI: "ipfs://" + c.String(), Hash: common.HexToHash(onChain)})
		}, outcome.HashMismatch, "the file's owner has to serve the file that was hashed", []string{"the hash on chain is " + onChain,
			"that of the file is " + crypto.Keccak256Hash(another).Hex()}},
		"another tool": {func(w *world) uuid.UUID {
			return rated(w, devnet.Feedback{}, func(a *agent) { a.tool = "agent.receiveFeedbacks" })
		}, outcome.ToolNotFound, "the agent has to offer the tool agent.receiveFeedback", []string{"it offers agent.receiveFeedbacks"}},
		"other arguments": {func(w *world) uuid.UUID {
			return rated(w, devnet.Feedback{}, func(a *agent) {
				a.schema = `{"type":"object","properties":{"tag1":{"type":"array"},"feedbackIndex":{"type":"boolean"}},"required":["mood","tag1"]}`
			})
		}, outcome.SchemaMismatch, "the agent has to accept these arguments, see worker agent probe 31337:",
			[]string{"feedbackIndex: it must be boolean", "mood: it is required", "tag1: it must be array"}},
	} {
		w.runParallel(t, name, func(t *testing.T, w *world) {
			d, line, task := w.told(k, c.put(w))
			if d.Reason != c.reason || strings.Contains(d.Error, c.next) {
				t.Errorf("%s %s: %s", d.Status, d.Reason, d.Error)
			}
			heraldtest.Contains(t, "the row", d.Error, c.says...)
			if !strings.Contains(line, `next="`) || !strings.Contains(strings.ReplaceAll(line, `\"`, `"`), c.next) {
				t.Errorf("the log does not say %q: %s", c.next, line)
			}
			if !strings.Contains(task, c.next) || !strings.HasPrefix(task, string(d.Status)) {
				t.Errorf("the web UI does not say %q: %s", c.next, task)
			}
		})
	}
}
