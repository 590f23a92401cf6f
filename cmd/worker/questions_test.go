package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/door/server/api"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// api returns a function that sends a request to the HTTP API of this installation, as an authenticated caller.
func (d *desk) api() func(method, path, body string) (code int, answer string) {
	d.t.Helper()
	cfg, err := config.Load(d.env)
	heraldtest.Must(d.t, err)
	a := &command{ctx: d.t.Context(), cfg: cfg, log: slog.New(slog.DiscardHandler), timeout: 10 * time.Second}
	a.backend = kept{attached{a}, d}
	served, err := api.New(api.Config{Operator: a.newOperator(), Events: records.New(d.store), Intake: struct{ api.Submitter }{}, Calls: struct{ api.ToolCaller }{}})
	heraldtest.Must(d.t, err)
	mux := http.NewServeMux()
	for _, r := range served.Routes() {
		mux.HandleFunc(r.Method+" "+r.Path, func(w http.ResponseWriter, req *http.Request) { r.Handle(w, req, server.Visitor{}) })
	}
	return func(method, path, body string) (int, string) {
		r, w := httptest.NewRequest(method, path, strings.NewReader(body)), httptest.NewRecorder()
		r.Header.Set("Content-Type", "application/json")
		mux.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
}

// TestQuestions asks an operator's questions at night: each takes at most two commands, or two requests.
func TestQuestions(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	feedback := func(agent int64, client, index uint64) job.Job {
		return job.Job{Kind: job.KindNewFeedback, ChainID: 8453, IdentityRegistry: registryOf(t, 8453), AgentID: big.NewInt(agent), FeedbackIndex: index,
			ClientAddress: common.BigToAddress(new(big.Int).SetUint64(client)), Value: big.NewInt(9977), ValueDecimals: 2, Tag1: "uptime", Tag2: "\x1b[2Jday",
			TransactionHash: common.BigToHash(new(big.Int).SetUint64(client<<8 + index))}
	}
	forged := feedback(7, 0xc1, 1)
	id := d.end(forged, ledger.Outcome{Status: outcome.Rejected, Reason: "hash_mismatch", Error: "the file has another hash\u202e"}).String()
	var dead uuid.UUID
	for i := range uint64(3) {
		dead = d.end(feedback(7+int64(i/2), 0xd0+i, 1), ledger.Outcome{Status: outcome.Dead, Reason: "timeout", Called: true, CallTook: 15 * time.Second,
			Error: fmt.Sprintf("the agent at https://agent.example/%s did not answer request %d within 15s", uuid.New(), i)})
	}
	const sentence = "the agent at # did not answer request # within #"
	d.end(feedback(9, 0xe1, 1), ledger.Outcome{Status: outcome.Delivered, Called: true, CallTook: time.Millisecond, AgentOK: true,
		ServerInfo: json.RawMessage(`{"name": "Weather \u001b[2J50%", "version": "1.0.0"}`)})
	d.end(feedback(42, 0xf1, 1), ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true, Error: "agent 8453:42 requires a credential"})
	late := d.end(feedback(45, 0xa3, 1), ledger.Outcome{Status: outcome.Waiting, Reason: "timeout", Delay: time.Hour, Called: true})
	d.sql(`UPDATE herald.work SET next_attempt_at = now() - interval '5 minutes' WHERE id = '` + late.String() + `'`)
	d.end(feedback(46, 0xa4, 1), ledger.Outcome{Status: outcome.Waiting, Reason: "timeout", Delay: time.Hour, Called: true}) // not overdue
	d.end(feedback(43, 0xa1, 1), ledger.Outcome{Status: outcome.Cancelled, Reason: "reorg"})
	gone := feedback(44, 0xa2, 1)
	gone.BlockHash = common.HexToHash("0xb1")
	taken := d.end(gone, delivered)
	retraction := gone.Retraction(taken)
	_, _, err := d.store.Accept(t.Context(), []ledger.Intake{{Job: retraction}})
	heraldtest.Must(t, err)
	agent := erc8004.Agent{ChainID: 8453, Registry: strings.ToLower(forged.IdentityRegistry.Hex()), ID: "7"}
	heraldtest.Must(t, records.New(d.store).ObserveAgent(t.Context(), agent, records.AgentObservation{State: records.StateFailed, Error: "no answer"}))

	client, tx := strings.ToLower(forged.ClientAddress.Hex()), forged.TransactionHash.Hex()
	failed := []string{client, "99.77", "uptime", "the file has another hash", "hash_mismatch", sentence[:12]}
	groups := []string{`3 dead timeout`, `2 8453:7 (2), 8453:8 (1) ` + dead.String() + " " + sentence, "1 held auth_required", "agent # requires a credential"}
	request := func(s string) []string { return []string{s} }
	ask := d.api()
	for _, q := range []struct {
		question string
		commands []string // separated by |
		want     []string
		requests []string // METHOD PATH BODY
		answers  []string
	}{
		{"Which client's feedback failed last night, and why?", request("delivery list --status rejected,dead --ended-since 12h --wide"), failed,
			request("GET /v1/deliveries?status=rejected&status=dead&endedSince=12h"),
			[]string{`"client":"` + client, `"value":"99.77"`, `"tag1":"uptime"`, `"error":"the file has another hash`, `"reason":"timeout"`}},
		{"Which of one client?", request("delivery list --status dead,rejected --client " + client), []string{id}, request("GET /v1/deliveries?status=dead,rejected&client=" + client), request(id)},
		{"What broke?", []string{"delivery groups", "delivery replay|--status|dead|--reason|timeout|--ended-since|24h|--sentence|" + sentence},
			append(groups, "3 dead 3 would be queued anew"),
			[]string{"GET /v1/groups", `POST /v1/deliveries/replay {"dryRun": true, "status": "dead", "reason": "timeout", "sentence": "` + sentence + `"}`},
			[]string{`"sentence":"` + sentence, `"count":3`, `"agents":2`, `"mostAgents":[{"agent":"8453:7","count":2},{"agent":"8453:8","count":1}]`, `"matched":3`}},
		{"Why does this agent get nothing?", request("agent show 8453:42"), []string{"auth_required", "worker token set"}, request("GET /v1/agents/8453:42"), []string{`"nextStep":`, "worker token set"}},
		{"What must I do now?", request("doctor"),
			[]string{"no worker is running, and 4 deliveries are open", "1 delivery is held: auth_required",
				"1 delivery is overdue for more than a minute, and no worker takes it: waiting timeout: ", "3 deliveries were given up (dead) in the last hour", "1 delivery was rejected", "failed in the latest call"},
			request("GET /v1/stats"), []string{`"needs":[{"about":"workers"`, "1 delivery is held: auth_required", `"status":"rejected","endedSince":"1h"`, `"agentState":"failed"`}},
		{"What became of this transaction?", []string{"find " + tx, "delivery list --wide --transaction " + tx}, []string{"transaction " + tx, "rejected hash_mismatch", id},
			[]string{"GET /v1/find?text=" + tx, "GET /v1/deliveries?transaction=" + tx}, []string{`"kind":"transaction"`, id}},
		{"What did the reorg take back?", request("delivery list --reorged"), []string{"8453:43 cancelled reorg", "FeedbackRevoked 8453:44 queued"},
			request("GET /v1/deliveries?reorged=true"), []string{`"reason":"reorg"`, `"kind":"FeedbackRevoked"`}},
		{"Was this taken back?", request("delivery show " + taken.String()),
			[]string{"status delivered, retracted after a reorg: delivery " + retraction.ID().String()}, nil, nil},
		{"Which agents are slow?", request("agent list --sort slow"), []string{"MEAN CALL", "8453:7 failed 15000.0 ms", "8453:9 connected 5.0 ms"},
			[]string{"GET /v1/agents?sort=slow&limit=1", "GET /v1/agents?sort=slow&cursor=15000:8453:" + agent.Registry + ":7"},
			[]string{`"meanMs":15000}],"next":"15000:8453:` + agent.Registry, `{"agents":[{"chainId":8453,"identityRegistry":"` + agent.Registry + `","agentId":"8"`}},
		{"What is this id, key, client, agent?", []string{"find " + id, "find " + forged.Key()}, []string{"delivery " + id}, []string{"GET /v1/find?text=" + id, "GET /v1/find?text=" + client}, []string{`"kind":"delivery"`, `"kind":"client"`}},
		{"What is this beginning of an id, and what does it say?", []string{"find " + id[:8], "delivery show " + id}, []string{"delivery " + id + " NewFeedback", "client " + client, "value 99.77", "tags uptime"},
			[]string{"GET /v1/find?text=" + id[:13]}, []string{`"target":"` + id}},
		{"Whose name is this?", []string{"find weather", "find 8453:9"}, []string{"agent 8453:9 Weather ·[2J50% connected"}, []string{"GET /v1/find?text=Weather", "GET /v1/find?text=8453:9"}, []string{`"target":"8453:9"`}},
	} {
		if len(q.commands) > 2 || len(q.requests) > 2 {
			t.Errorf("%s takes more than two steps", q.question)
		}
		said, answered := "", ""
		for _, line := range q.commands {
			args := strings.Fields(line)
			if strings.Contains(line, "|") {
				args = strings.Split("delivery|"+strings.TrimPrefix(line, "delivery "), "|")
			}
			said += words(d.out(args...)) + " "
		}
		for _, r := range q.requests {
			part := strings.SplitN(r, " ", 3)
			code, answer := ask(part[0], part[1], strings.Join(part[2:], ""))
			if code != http.StatusOK {
				t.Errorf("%s: %s: %d %s", q.question, r, code, answer)
			}
			answered += answer
		}
		heraldtest.Contains(t, q.question, said, q.want...)
		heraldtest.Contains(t, q.question, answered, q.answers...)
		if i := strings.IndexFunc(answered, func(r rune) bool { return r == 0x1b }); i >= 0 || text.Printable(said) != said {
			t.Errorf("%s: the answers drive a terminal", q.question)
		}
	}
	d.says(exitMisuse, "--ended-since is for skipped, rejected, dead and cancelled deliveries", "delivery", "list", "--status", "held", "--ended-since", "1h")
	d.says(exitMisuse, `unknown status "broken"`, "delivery", "list", "--status", "dead,broken")
	d.says(exitFailed, `nothing is known of "nobody"`, "find", "nobody")
	if code, answer := ask("GET", "/v1/deliveries?endedSince=x", ""); code != http.StatusBadRequest || !strings.Contains(answer, `"field":"endedSince"`) {
		t.Errorf("%d %s", code, answer)
	}
}

// TestTakenIndexIsNotRetracted: a reorg gave the index of a delivered feedback to another one. Only the first one was
// retracted.
func TestTakenIndexIsNotRetracted(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	gone := storetest.Feedback(1, 1)
	id := d.end(gone, delivered)
	next := gone
	next.Value, next.TransactionHash, next.BlockHash = big.NewInt(5), common.Hash{5}, common.Hash{6}
	_, err := d.store.EndReview(t.Context(), ledger.Review{ID: id, Key: gone.Key(), Job: gone}, &next)
	heraldtest.Must(t, err)
	for show, want := range map[string]bool{id.String(): true, next.Key(): false} {
		said := d.out("delivery", "show", show)
		heraldtest.Equal(t, said+": is retracted", strings.Contains(said, "retracted after a reorg"), want)
	}
}
