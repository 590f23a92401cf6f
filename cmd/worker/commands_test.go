package main

import (
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/inspect"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// TestUnknownIsNotFound checks that the id of an unknown delivery or agent leads to exit code 1 and "not found". An
// invalid id is misuse.
func TestUnknownIsNotFound(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(42, dead)
	for _, line := range []string{"delivery show %s", "delivery show --json %s", "delivery replay %s", "delivery replay --json %s", "delivery replay --force %s",
		"delivery cancel %s", "delivery cancel --json %s", "delivery cancel --force %s"} {
		d.says(1, "not found", strings.Fields(fmt.Sprintf(line, uuid.New()))...)
		d.says(2, "not a delivery id", strings.Fields(fmt.Sprintf(line, "42"))...)
	}
	for _, line := range []string{"agent show %s", "agent show --json %s", "agent enable %s", "agent enable --json %s", "agent policy %s", "agent policy --json %s"} {
		d.says(1, "not found", strings.Fields(fmt.Sprintf(line, "8453:999"))...)
		d.says(2, "CHAIN:AGENT", strings.Fields(fmt.Sprintf(line, "999"))...)
	}
	if rows := d.audits(); slices.ContainsFunc(rows, func(a records.Audit) bool { return a.Moved > 0 || a.Action == "agent enable" }) {
		t.Errorf("something was changed: %+v", rows)
	}
	// If only some ids exist, those are replayed, and the exit code reports that others were left.
	id := d.ended(42, dead)
	d.says(exitLeft, "1 of 2 changed. Reasons are listed above.", "delivery", "replay", id.String(), uuid.New().String())
}

// TestBeginningOfAnID checks that every command that takes a delivery's id takes its first digits, unless they are those
// of two deliveries.
func TestBeginningOfAnID(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.ended(42, dead)
	short, dashed := strings.ToUpper(id.String()[:8]), id.String()[:13]
	heraldtest.Equal(t, "the delivery", ask[operator.Delivery](d, "delivery", "show", short).ID, id)
	d.says(0, "1 of 1 queued anew", "delivery", "replay", short, id.String(), dashed)
	d.says(0, "1 of 1 cancelled", "delivery", "cancel", dashed)
	heraldtest.Equal(t, "the audit", ask[operator.Delivery](d, "delivery", "show", dashed).Status, outcome.Cancelled)
	for _, line := range []string{"delivery show 01234567", "delivery replay 01234567", "delivery cancel --force 01234567"} {
		d.says(1, "not found", strings.Fields(line)...)
	}
	for _, index := range []uint64{21449, 89599} { // the ids of both begin with 69c3136a
		d.end(job.Job{Kind: job.KindNewFeedback, ChainID: 8453, IdentityRegistry: registryOf(t, 8453), AgentID: big.NewInt(42), FeedbackIndex: index,
			Value: big.NewInt(1), ClientAddress: common.BigToAddress(big.NewInt(1))}, dead)
	}
	for _, line := range []string{"delivery show 69c3136a", "delivery replay 69c3136a", "delivery cancel --force 69c3136a"} {
		d.says(exitMisuse, "69c3136a is the beginning of 69c3136a-", strings.Fields(line)...)
	}
}

// pagesOf reads a list page by page, as a script does: it follows next until it is empty.
func pagesOf[T any](d *desk, rows func(T) int, next func(T) string, args ...string) (sizes []int) {
	d.t.Helper()
	line := args
	for range 10 {
		page := ask[T](d, line...)
		sizes = append(sizes, rows(page))
		if next(page) == "" {
			return sizes
		}
		line = slices.Concat(args, []string{"--cursor", next(page)})
	}
	d.t.Fatalf("worker %v has no last page", args)
	return nil
}

// TestListsHaveACursor checks that the last page of a list has no cursor, even if the page is full.
func TestListsHaveACursor(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for agent := range int64(4) {
		d.ended(agent+1, dead)
		d.worker(0, "agent", "policy", fmt.Sprintf("8453:%d", agent+1), "onUnknown=hold")
	}
	for limit, want := range map[string][]int{"3": {3, 1}, "4": {4}} {
		deliveries := pagesOf(d, func(p operator.DeliveryPage) int { return len(p.Deliveries) }, func(p operator.DeliveryPage) string { return p.Next },
			"delivery", "list", "--limit", limit)
		agents := pagesOf(d, func(p operator.AgentPage) int { return len(p.Agents) }, func(p operator.AgentPage) string { return p.Next },
			"agent", "list", "--limit", limit)
		failing := pagesOf(d, func(p operator.AgentPage) int { return len(p.Agents) }, func(p operator.AgentPage) string { return p.Next },
			"agent", "list", "--sort", "failing", "--limit", limit)
		audit := pagesOf(d, func(p operator.AuditPage) int { return len(p.Audit) }, func(p operator.AuditPage) string { return p.Next },
			"delivery", "audit", "--limit", limit)
		heraldtest.Equal(t, "deliveries, agents, failing, audit", [][]int{deliveries, agents, failing, audit},
			[][]int{want, want, want, want})
	}
	accepted := ask[operator.DeliveryPage](d, "delivery", "list", "--limit", "1").Deliveries[0].CreatedAt
	heraldtest.Contains(t, "a time that --since takes", d.out("delivery", "list", "--limit", "1"), " "+accepted.UTC().Format(time.RFC3339)+" ")
	for _, id := range []string{"0", "18446744073709551615"} {
		d.says(exitMisuse, "worker: "+id+" is no chain's id", "chain", "show", id)
		d.says(exitMisuse, "worker: "+id+" is no chain's id", "agent", "list", "--chain", id)
	}
	for _, list := range []string{"chain", "signing-key", "api-token"} {
		heraldtest.Equal(t, "an empty list", d.out(list, "list", "--json"), "[]\n")
	}
	for _, list := range [][]string{{"delivery", "list"}, {"agent", "list"}, {"delivery", "audit"}} {
		heraldtest.Lacks(t, "the last page", d.out(append(list, "--limit", "4")...), "more:")
		d.says(0, "more: --cursor ", append(list, "--limit", "3")...)
	}
}

// TestAgentsCalls checks that `agent show` contains statistics of the agent's calls, and that `agent list --sort
// failing` starts with the agent that fails most.
func TestAgentsCalls(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ok := ledger.Outcome{Status: outcome.Delivered, Called: true, AgentOK: true, CallTook: 15 * time.Millisecond}
	timeout := ledger.Outcome{Status: outcome.Waiting, Reason: "timeout", Delay: time.Hour, AgentError: "it did not answer"}
	busy := ledger.Outcome{Status: outcome.Waiting, Reason: "throttled", Delay: time.Hour, Free: true}
	for agent, outcomes := range map[int64][]ledger.Outcome{41: {ok, busy}, 42: {ok, ok, timeout}, 43: {timeout, timeout, ok}, 44: {timeout}} {
		for _, o := range outcomes {
			d.ended(agent, o)
		}
	}
	d.says(0, "8453:43 connected 2 3 ", "agent", "list", "--sort", "failing")
	heraldtest.Lacks(t, "the list", d.out("agent", "list"), "24H")

	d.says(0, "1 failed (1 timeout), p50 15.0 ms, p95 19.5 ms last day 3 calls since ", "agent", "show", "8453:42")
	d.says(0, "failing since ", "agent", "show", "8453:44")
	r := ask[operator.Agent](d, "agent", "show", "8453:43")
	if r.LastHour.Calls != 3 || r.LastHour.Failed != 2 || r.LastHour.Failures["timeout"] != 2 || *r.LastHour.P95Ms != 19.5 || r.LastDay.Calls != 3 ||
		r.LastDay.Since.After(time.Now().Add(-24*time.Hour)) || r.FailingSince != nil || r.LastCalledAt == nil {
		t.Errorf("%+v", r)
	}
}

// TestDisableOfANeverSeenAgent checks that the command warns about an agent that was never seen, because its number may
// be mistyped. It still applies the change.
func TestDisableOfANeverSeenAgent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.says(0, "agent 8453:4200 of registry "+strings.ToLower(registryOf(t, 8453).Hex())+" was never seen: no delivery was ever accepted for it. Check the number",
		"agent", "disable", "8453:4200")
	heraldtest.Equal(t, "the agent is enabled", d.agent("4200").Enabled, false)
	if r := ask[operator.AgentChange](d, "agent", "disable", "8453:4201"); !r.Unseen || *r.Enabled {
		t.Errorf("%+v", r)
	}
	heraldtest.Lacks(t, "the second time", d.out("agent", "disable", "8453:4200"), "never seen")
	d.says(0, "was never seen", "agent", "policy", "8453:4202", "onUnknown=hold")
}

// TestAuditRecordsPreviousState checks that the audit records the previous state of the changed rows, and whether the
// change was forced.
func TestAuditRecordsPreviousState(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	gone, good := d.ended(42, dead), d.ended(42, delivered)
	wait := d.ended(42, ledger.Outcome{Status: outcome.Waiting, Reason: "timeout", Delay: time.Hour, Called: true})
	d.ended(42, ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true})
	d.worker(0, "agent", "disable", "8453:42")
	d.worker(0, "agent", "policy", "8453:42", "onUnknown=hold")
	d.worker(0, "agent", "enable", "8453:42")
	d.worker(0, "delivery", "cancel", "--agent", "8453:42", "--yes", "--force")
	d.worker(exitLeft, "delivery", "replay", "--force", gone.String(), good.String(), uuid.New().String())
	d.worker(0, "delivery", "replay", "--reason", "operator", "--yes")
	rows := d.audits()
	slices.Reverse(rows)
	for i, want := range []struct{ action, filter, note string }{
		{"agent disable", `"open": { "held": 1, "waiting": 1 }`, ""},
		{"agent disable", `"wasEnabled": true`, ""},
		{"agent policy", `"was": {}`, ""},
		{"agent enable", `"wasEnabled": false`, ""},
		{"agent enable", `"open": { "held": 1, "waiting": 1 }`, ""},
		{"cancel", `"was": { "waiting timeout": 1, "held auth_required": 1 }`, ""},
		{"cancel", `"force": true`, ""},
		{"replay", `"force": true`, "1 left: there is no such delivery"},
		{"replay", `"was": { "delivered": 1, "dead timeout": 1 }`, "1 left: there is no such delivery"},
		{"replay", `"was": { "cancelled operator": 2 }`, ""},
	} {
		n := slices.IndexFunc(rows, func(a records.Audit) bool {
			return a.Action == want.action && strings.Contains(words(string(a.Filter)), want.filter)
		})
		if n < 0 || rows[n].Note != want.note || rows[n].State != "done" {
			t.Errorf("%d: no row of %s says %s with note %q:\n%s", i, want.action, want.filter, want.note,
				d.out("delivery", "audit"))
		}
	}
	heraldtest.Lacks(t, "the last change", string(rows[len(rows)-1].Filter), "force")
	heraldtest.Equal(t, "d.status(wait)", d.status(wait), "queued")
}

// TestResolveALocalFile checks that `agent resolve --uri` accepts local files, so that authors can check unpublished
// ones. Files are read only if the command line names them.
func TestResolveALocalFile(t *testing.T) {
	t.Parallel()
	p := newSurroundings(t, true)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		heraldtest.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	registration := write("registration.json", p.doc("https://a.example/mcp"))
	const feedback = `{"agentId":42,"clientAddress":"0x1111111111111111111111111111111111111111","value":9977}`
	file := write("feedback.json", feedback)
	other := "0x" + strings.Repeat("01", 32)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--uri", registration, "--check"}, 0, "source file (of this machine)"},
		{[]string{"--uri", "file://" + registration, "--check"}, 0, "mcp 1 services[0] http https://a.example/mcp (2025-06-18): can be called"},
		{[]string{"--uri", file, "--check"}, 0, "looks like a feedback file"},
		{[]string{"--uri", file, "--hash", other}, 0, "hash mismatch: "},
		{[]string{"--uri", file, "--hash", other, "--check"}, 1, "--check: the document cannot be used"},
		{[]string{"--uri", write("a.json", `{"name":"a","active":false,"services":[]}`), "--check"}, 1, "--check: the document cannot be used"},
		{[]string{"--uri", write("b.json", p.doc("wss://a.example/")), "--check"}, 1, "that can be called: 0"},
		{[]string{"--uri", write("c.txt", "hello"), "--check"}, 1, "text, not JSON"},
		{[]string{"--uri", p.web.URL + "/agent.json", "--check"}, 0, "can be called"},
		{[]string{"--uri", p.web.URL + "/page", "--check"}, 1, "a web page"},
		{[]string{"--uri", "I liked it", "--check"}, 1, "no_document"},
		{[]string{"--uri", "ar://" + strings.Repeat("a", 43)}, 1, "worker: could not be fetched, and will not be before the fault above is corrected"},
		{[]string{"--uri", dir}, 1, "is not a file"},
		{[]string{"--uri", filepath.Join(dir, "none.json")}, 1, "no such file"},
		{[]string{"--uri", write("large.json", strings.Repeat(" ", inspect.MaxDocument+1))}, 1, "more than Herald fetches"},
	} {
		out, errs := p.resolve(c.code, nil, c.args...)
		heraldtest.Contains(t, strings.Join(c.args, " "), words(out+errs), c.says)
	}

	// A URI from a chain never reads a file of this machine.
	for _, uri := range []string{"file://" + registration, registration} {
		out, _ := p.resolve(1, nil, "--check", "31337:"+p.register(uri).String())
		heraldtest.Contains(t, uri, out, "a delivery is skipped (no_document)")
	}
}

// TestResolveARelativeFile: a command line names a file of the working directory, with or without "./". A chain does not.
func TestResolveARelativeFile(t *testing.T) {
	t.Chdir(t.TempDir())
	p := newSurroundings(t, true)
	write(t, "registration.json", p.doc("https://a.example/mcp"))
	p.resolve(0, nil, "--check", "--uri", "registration.json")
	p.resolve(0, nil, "--check", "--uri", "./registration.json")
	out, _ := p.resolve(1, nil, "--check", "31337:"+p.register("registration.json").String())
	heraldtest.Contains(t, "the output", out, "a delivery is skipped (no_document)")
}

// TestAgentShowsEffort checks that the command shows the effort that all workers together recorded for an agent, and
// reports if it cannot read it.
func TestAgentShowsEffort(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(42, ledger.Outcome{Status: outcome.Delivered, Called: true, AgentOK: true})
	d.says(0, "effort 60 s left of 60 s a minute; used: nothing yet", "agent", "show", "8453:42")

	client := d.queue.Client(10 * time.Second)
	t.Cleanup(func() { _ = client.Close() })
	b, err := effort.New(effort.Config{Size: time.Hour, Redis: client, Timeout: 10 * time.Second})
	heraldtest.Must(t, err)
	t.Cleanup(b.Close)
	of := erc8004.Agent{ChainID: 8453, Registry: strings.ToLower(registryOf(t, 8453).Hex()), ID: "42"}
	h, err := b.Begin(t.Context(), of)
	heraldtest.Must(t, err)
	h.Spend(effort.Calls, 1, 25*time.Minute)
	h.End()
	var shown operator.Agent
	for range 100 {
		if shown = ask[operator.Agent](d, "agent", "show", "8453:42"); shown.Effort.Calls > 0 {
			break
		}
	}
	if e := shown.Effort; e.Budget != 60 || e.Calls < 1400 || e.Left > -1340 || e.Mean != 1500 {
		t.Errorf("%+v", e)
	}

	d.env = append(d.env, "HERALD_EFFORT_BUDGET=off")
	heraldtest.Lacks(t, "without a budget", d.out("agent", "show", "8453:42"), "effort")
	d.env = append(slices.Clone(d.env[:len(d.env)-1]), "REDIS_URL=redis://127.0.0.1:1")
	d.says(0, "the agent's effort budget cannot be read: ", "agent", "show", "8453:42")
}
