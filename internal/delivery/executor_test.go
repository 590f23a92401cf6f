package delivery

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// TestDeliveries checks how single deliveries end, all in one running worker.
func TestDeliveries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.newWorker()
	shutdown := w.serve(k)

	w.runParallel(t, "delivered with its file", func(t *testing.T, w *world) {
		a := newAgent(t)
		file := []byte(`{"text":"Fast and always there.","n":1e2}`)
		c := w.gateway.AddFile(file)
		id := w.register(at(a.URL))
		j, client := w.rate(devnet.Feedback{AgentID: id, Tag1: "uptime", URI: "ipfs://" + c.String(), Hash: crypto.Keccak256Hash(file)})
		d := w.until(w.accept(j), outcome.Delivered)
		if d.FileSource != "cid" || d.FileVerification != "raw" || d.ToolName != "agent.receiveFeedback" ||
			d.Endpoint != a.URL || d.Attempts != 1 || d.Error != "" || d.FileDisagrees != nil {
			t.Errorf("%+v", d)
		}
		if len(d.History) != 1 || d.History[0].Outcome != "delivered" || d.History[0].Protocol != "2025-11-25" || !strings.Contains(string(d.Result), "thank you") {
			t.Errorf("history %+v, result %s", d.History, d.Result)
		}
		calls := a.received()
		if len(calls) != 1 {
			t.Fatalf("%d calls", len(calls))
		}
		args := calls[0].args(t)
		for name, want := range map[string]any{"deliveryId": d.ID.String(), "clientAddress": client.Address.Hex(), "value": "9977", "tag1": "uptime",
			"agentId": id.String(), "fileVerification": "raw", "fileSource": "cid"} {
			heraldtest.Equal(t, name, args[name], want)
		}
		heraldtest.Contains(t, "the call", string(calls[0].Arguments), `"fileContent":{"text":"Fast and always there.","n":1e2}`)
		about, _ := calls[0].Meta[tools.MetaKey].(map[string]any)
		if about["id"] != d.ID.String() || about["key"] != d.Key || about["attempt"] != 1.0 || about["replay"] != false || about["sanitized"] != nil {
			t.Errorf("_meta %v", calls[0].Meta)
		}
		if tp, _ := calls[0].Meta["traceparent"].(string); len(tp) != 55 || !strings.HasPrefix(tp, "00-") {
			t.Errorf("traceparent %q", tp)
		}
		for _, step := range []string{"claim", "check", "resolve", "fetch", "connect", "compose", "call", "record"} {
			// The row is committed before its step is traced.
			heraldtest.Await(t, "step "+step, func() bool { n, _ := k.seen(d.ID, step); return n > 0 })
			n, _ := k.seen(d.ID, step)
			heraldtest.Equal(t, "times that step "+step+" was told", n, 1)
		}
	})

	// ends delivers one feedback and checks its status and reason.
	ends := func(name string, want outcome.Status, why outcome.Reason, setup func(t *testing.T, w *world) map[string]any, look func(t *testing.T, w *world, d ledger.Delivery)) {
		w.runParallel(t, name, func(t *testing.T, w *world) {
			id := w.accept(setup(t, w))
			d := w.until(id, want)
			heraldtest.Equal(t, "the reason", d.Reason, why)
			if why != "" && d.Error == "" {
				t.Error("nothing tells why")
			}
			if look != nil {
				look(t, w, d)
			}
			if want == outcome.Rejected || want == outcome.Dead {
				heraldtest.Contains(t, "the archive", w.archived(d), string(want)+" "+string(why))
			}
		})
	}
	rated := func(w *world, registration any, f devnet.Feedback) map[string]any {
		f.AgentID = w.register(registration)
		j, _ := w.rate(f)
		return j
	}

	// file checks the verification of the file and the number of attempts.
	file := func(verification string, attempts int) func(*testing.T, *world, ledger.Delivery) {
		return func(t *testing.T, _ *world, d ledger.Delivery) {
			if d.FileVerification != verification || d.Attempts != attempts {
				t.Errorf("%+v", d)
			}
		}
	}

	ends("a file that contradicts its event", outcome.Delivered, "", func(t *testing.T, w *world) map[string]any {
		lies := []byte(`{"agentRegistry":"eip155:31337:0x0000000000000000000000000000000000000001",
			"clientAddress":"0x0000000000000000000000000000000000000002","value":1,"valueDecimals":0,"tag1":"slow"}`)
		c := w.gateway.AddFile(lies)
		return rated(w, at(newAgent(t).URL), devnet.Feedback{Tag1: "uptime", URI: "ipfs://" + c.String(),
			Hash: crypto.Keccak256Hash(lies)})
	}, func(t *testing.T, w *world, d ledger.Delivery) {
		const fields = "agentRegistry, clientAddress, value, valueDecimals, tag1"
		heraldtest.Equal(t, "the row says", strings.Join(d.FileDisagrees, ", "), fields)
		// The row is committed before its steps are traced and its log line is written.
		logged := "fileDisagrees=" + strings.ReplaceAll(fields, ", ", ",")
		heraldtest.Await(t, "the log line", func() bool { return w.log.Count(logged) == 1 })
		_, step := k.seen(d.ID, "fetch")
		heraldtest.Contains(t, "the time line", step.Detail, "; the file disagrees with the event in "+fields+": the event wins")
		sent := string(d.History[0].Arguments)
		heraldtest.Contains(t, "the call", sent, `"value": "9977"`, `"tag1": "uptime"`)
		heraldtest.Lacks(t, "the call", sent, "isagree")
	})
	ends("a mismatch that the job does not mind", outcome.Delivered, "", func(t *testing.T, w *world) map[string]any {
		c := w.gateway.AddFile([]byte(`{}`))
		j := rated(w, at(newAgent(t).URL), devnet.Feedback{URI: "ipfs://" + c.String(), Hash: common.HexToHash("0x02")})
		return with(j, map[string]any{"verifyFileHash": false})
	}, file("mismatch", 1))
	ends("a web file that is replaced while it is read", outcome.Delivered, "", func(t *testing.T, w *world) map[string]any {
		good, first := []byte(`{"v":2}`), make(chan bool, 1)
		first <- true
		web := newAgent(t, onAny(func(_ string, w http.ResponseWriter, _ *http.Request, _ json.RawMessage) bool {
			select {
			case <-first:
				_, _ = w.Write([]byte(`{"v":1}`))
			default:
				_, _ = w.Write(good)
			}
			return true
		}))
		return rated(w, at(newAgent(t).URL), devnet.Feedback{URI: web.URL + "/file.json", Hash: crypto.Keccak256Hash(good)})
	}, file("raw", 1))
	ends("a file that cannot be had is left out", outcome.Delivered, "", func(t *testing.T, w *world) map[string]any {
		return rated(w, at(newAgent(t).URL), devnet.Feedback{URI: "ipfs://bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy"})
	}, func(t *testing.T, w *world, d ledger.Delivery) {
		if d.FileVerification != "unavailable" || d.Attempts != 4 || d.History[0].Reason != "content_unavailable" {
			t.Errorf("%+v", d)
		}
	})
	ends("a URI that is none delays nobody", outcome.Delivered, "", func(t *testing.T, w *world) map[string]any {
		return rated(w, at(newAgent(t).URL), devnet.Feedback{URI: "I liked it"})
	}, file("unavailable", 1))
	ends("content is not asked for", outcome.Delivered, "", func(t *testing.T, w *world) map[string]any {
		j := rated(w, at(newAgent(t).URL), devnet.Feedback{URI: "https://169.254.169.254/never/fetched"})
		return with(j, map[string]any{"includeFileContent": false})
	}, file("not_fetched", 1))
	ends("no tokenURI", outcome.Skipped, "no_uri", func(t *testing.T, w *world) map[string]any { return rated(w, nil, devnet.Feedback{}) }, nil)
	ends("an inactive agent", outcome.Skipped, "agent_inactive", func(t *testing.T, w *world) map[string]any {
		doc := at(newAgent(t).URL)
		doc["active"] = false
		return rated(w, doc, devnet.Feedback{})
	}, nil)
	ends("a command from the chain", outcome.Rejected, "transport_refused", func(t *testing.T, w *world) map[string]any {
		return rated(w, map[string]any{"capabilities": map[string]any{"mcp": map[string]any{"transport": "stdio", "command": "/bin/sh", "args": []string{"-c", "id"}}}}, devnet.Feedback{})
	}, nil)
	ends("a schema that forbids the rest", outcome.Delivered, "", func(t *testing.T, w *world) map[string]any {
		return rated(w, at(newAgent(t, func(a *agent) {
			a.schema = `{"type":"object","properties":{"score":{"type":"integer"}},"additionalProperties":false,"required":["score"]}`
		}).URL), devnet.Feedback{})
	}, func(t *testing.T, w *world, d ledger.Delivery) {
		heraldtest.Equal(t, "the call", string(d.History[0].Arguments), `{"score": 100}`)
	})
	ends("the tool says no", outcome.Rejected, "tool_error", func(t *testing.T, w *world) map[string]any {
		no := answers(`{"isError":true,"content":[{"type":"text","text":"not from \u001b[31myou"}]}`)
		return rated(w, at(newAgent(t, no).URL), devnet.Feedback{})
	}, func(t *testing.T, w *world, d ledger.Delivery) {
		if strings.ContainsRune(d.Error, 0x1b) || !strings.Contains(d.Error, "not from") || !strings.Contains(string(d.History[0].Response), "isError") {
			t.Errorf("%q %s", d.Error, d.History[0].Response)
		}
	})
	ends("the job's own headers are refused", outcome.Rejected, "auth_failed", func(t *testing.T, w *world) map[string]any {
		return with(rated(w, nil, devnet.Feedback{}), own(newAgent(t, status(401)).URL, map[string]any{"X-Key": "hunter2hunter2"}))
	}, nil)
	ends("an own endpoint with headers", outcome.Delivered, "", func(t *testing.T, w *world) map[string]any {
		a := newAgent(t, onAny(func(_ string, w http.ResponseWriter, r *http.Request, _ json.RawMessage) bool {
			if r.Header.Get("X-Key") == "hunter2hunter2" {
				return false
			}
			w.WriteHeader(401)
			return true
		}))
		return with(rated(w, nil, devnet.Feedback{}), own(a.URL, map[string]any{"X-Key": "hunter2hunter2"}))
	}, func(t *testing.T, w *world, d ledger.Delivery) {
		heraldtest.Lacks(t, "the row", string(asJSON(d)), "hunter2")
	})
	ends("an own endpoint is checked too", outcome.Rejected, "event_not_found", func(t *testing.T, w *world) map[string]any {
		j := with(rated(w, nil, devnet.Feedback{}), own(newAgent(t).URL, nil))
		j["feedbackIndex"] = 9
		return j
	}, nil)
	ends("revoked before it was delivered", outcome.Skipped, "revoked", func(t *testing.T, w *world) map[string]any {
		id := w.register(at(newAgent(t).URL))
		j, client := w.rate(devnet.Feedback{AgentID: id})
		w.mu.Lock()
		defer w.mu.Unlock()
		must(w.net.RevokeFeedback(heraldtest.Within(t, 20*time.Second), client, id, 1))
		return j
	}, nil)
	ends("an agent that is not there", outcome.Dead, "connect_failed", func(t *testing.T, w *world) map[string]any {
		// A port that was just closed may by now belong to another test's agent. Nothing listens on port 1.
		return rated(w, at("http://127.0.0.1:1/"), devnet.Feedback{})
	}, func(t *testing.T, w *world, d ledger.Delivery) {
		if d.Attempts != 4 || len(d.History) != 4 {
			t.Errorf("%d attempts, %d rows", d.Attempts, len(d.History))
		}
	})
	ends("a template", outcome.Delivered, "", func(t *testing.T, w *world) map[string]any {
		return with(rated(w, at(newAgent(t).URL), devnet.Feedback{Tag1: "uptime"}), map[string]any{
			"payloadTemplate": map[string]any{"what": "{{tag1}} is {{value}}", "index": "{{feedback_index}}", "id": "{{deliveryId}}"}})
	}, func(t *testing.T, w *world, d ledger.Delivery) {
		var sent map[string]any
		heraldtest.Must(t, json.Unmarshal(d.History[0].Arguments, &sent))
		if sent["what"] != "uptime is 9977" || sent["index"] != 1.0 || sent["id"] != d.ID.String() || sent["deliveryId"] != d.ID.String() || len(sent) != 4 {
			t.Errorf("sent %v", sent)
		}
	})

	t.Cleanup(func() {
		shutdown() // a plain success is recorded in the background and traced after its row is committed
		heraldtest.Equal(t, "lines with a secret", w.log.Count("hunter2"), 0)
		heraldtest.Equal(t, "files that disagree", w.log.Count("fileDisagrees="), 1)
		heraldtest.Lacks(t, "the time lines", fmt.Sprint(k.steps), "hunter2")
	})
}

// archived returns the error of a delivery's last task in the web UI's archive.
func (w *world) archived(d ledger.Delivery) (says string) {
	w.t.Helper()
	heraldtest.Await(w.t, "the task in the archive", func() bool {
		tasks := w.shown("archived")
		i := slices.IndexFunc(tasks, func(x shownTask) bool { return x.ID == queue.Task{DeliveryID: d.ID, N: d.Dispatch}.ID() })
		if i >= 0 {
			says = tasks[i].Error
		}
		return i >= 0
	})
	return says
}
