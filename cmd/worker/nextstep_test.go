package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/guardtest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/alecthomas/kong"
)

// TestNextStepsCanBeTyped checks that the commands, options and settings in next steps exist.
func TestNextStepsCanBeTyped(t *testing.T) {
	t.Parallel()
	settings := map[string]bool{}
	for _, d := range config.Docs() {
		settings[strings.TrimSuffix(d.Name, "_<chainId>")] = true
	}
	command := regexp.MustCompile(`worker ((?:agent|token|delivery|doctor)[^;(),]*)`)
	setting := regexp.MustCompile(`(?:HERALD|RPC|IDENTITY|ARWEAVE|IPFS)_[A-Z_]+`)
	whole := outcome.Subject{Delivery: oneID, ChainID: 8453, Agent: "8453:110 --registry 0x00000000000000000000000000000000000000AA",
		Endpoint: "https://agent.example:8443/mcp", Tool: "agent.receiveFeedback"}
	probed, listed, over := whole, whole, whole
	probed.Delivery, listed.Listed, over.Over = "", true, true
	commands := 0
	for _, r := range outcome.Reasons() {
		for _, s := range []outcome.Subject{whole, probed, listed, over, {}} {
			step := outcome.NextStep(r, s)
			for _, found := range command.FindAllStringSubmatch(step, -1) {
				commands++
				if err := parses(strings.Fields(found[1])); err != nil && s != (outcome.Subject{}) {
					t.Errorf("%s: %q: %v", r, found[0], err)
				}
			}
			for _, name := range setting.FindAllString(step, -1) {
				if !settings[strings.TrimSuffix(name, "_")] {
					t.Errorf("%s: there is no setting %s: %s", r, name, step)
				}
			}
		}
	}
	if commands < 50 {
		t.Errorf("only %d commands were found", commands)
	}
}

// parses reports whether the worker accepts the command line, without running it.
func parses(args []string) error {
	var c commands
	parser, err := kong.New(&c, kong.Name("worker"), kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}))
	if err != nil {
		return err
	}
	_, err = parser.Parse(args)
	return err
}

// TestShowSaysWhatToDo checks the next steps of rows, including rows that were written before next steps existed.
func TestShowSaysWhatToDo(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	held := d.ended(110, ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true, Endpoint: "https://agent.example/mcp",
		Error: "listing the agent's tools: the agent answered HTTP 401 Unauthorized"})
	d.says(0, "next step store a token: worker token set 8453:110 --origin https://agent.example/mcp (where it wants OAuth: "+
		"worker token login 8453:110 --origin https://agent.example/mcp)", "delivery", "show", held.String())
	d.says(0, "next step delivery "+held.String()+" is held auth_required: store a token: worker token set 8453:110", "agent", "show", "8453:110")
	row, err := d.store.Delivery(t.Context(), held)
	heraldtest.Must(t, err)
	d.says(0, "attempts 0 that count; held for auth_required since "+row.UpdatedAt.UTC().Format("2006-01-02T15:04:05Z"),
		"delivery", "show", held.String())
	shown := ask[struct{ ID, Status, NextStep string }](d, "delivery", "show", held.String())
	if shown.ID != held.String() || shown.Status != "held" || !strings.HasPrefix(shown.NextStep, "store a token: worker token set 8453:110 ") {
		t.Errorf("%+v", shown)
	}

	rejected := d.ended(110, ledger.Outcome{Status: outcome.Rejected, Reason: "tool_not_found", Called: true})
	d.says(0, "next step the agent has to offer the tool of the job; one of another name counts when HERALD_TOOL_ALIASES says so; "+
		"then: worker delivery replay "+rejected.String(), "delivery", "show", rejected.String())
	dead := d.ended(110, ledger.Outcome{Status: outcome.Dead, Reason: "timeout"})
	d.says(0, "once the agent answers again (worker agent probe 8453:110): worker delivery replay "+dead.String(), "delivery", "show", dead.String())
	delivered := d.ended(110, ledger.Outcome{Status: outcome.Delivered, Called: true, Result: json.RawMessage(`{}`)})
	heraldtest.Lacks(t, "a delivered one", d.out("delivery", "show", delivered.String()), "next step")
}

// TestJobIsGone: no text says that a delivery whose job retention deleted can be replayed.
func TestJobIsGone(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	gone := d.ended(110, ledger.Outcome{Status: outcome.Dead, Reason: "timeout"})
	d.sql(`UPDATE herald.history SET job = NULL`)
	const step = "next step nothing to do: retention deleted the job, so it cannot be delivered again"
	d.says(0, step, "delivery", "show", gone.String())
	heraldtest.Lacks(t, "the delivery", d.out("delivery", "show", gone.String()), "worker delivery replay")
	d.says(0, "next step delivery "+gone.String()+" is dead timeout: nothing to do: retention", "agent", "show", "8453:110")
	d.ended(111, ledger.Outcome{Status: outcome.Dead, Reason: "timeout"})
	d.says(0, "not moved: 1 dead (without a job: retention deleted it, or it was invalid) 1 would be queued anew", "delivery", "replay", "--status", "dead")
}

// TestProbeSaysWhatToDo checks that the output about a failing agent uses Herald's own words and names a next step.
func TestProbeSaysWhatToDo(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(closed.Close)
	env := []string{"HERALD_ALLOW_NETWORKS=127.0.0.0/8", "HERALD_LEASE=2m", "HERALD_LOG_LEVEL=error",
		"HERALD_DATA=" + t.TempDir()}
	checkWorker(t, env, 0, "next: store a token: worker token set 8453:110 --origin "+closed.URL, "agent", "probe",
		"--url", closed.URL+"/mcp", "8453:110")
	for _, f := range guardtest.Failures(t, "did not answer within 3 s") {
		env := append(env, "HERALD_CALL_TIMEOUT="+f.Wait().String())
		_, out, errs := worker(t, env, "agent", "probe", "--url", f.URL+"/mcp", "8453:110")
		_, verdict, found := strings.Cut(out, "verdict: ")
		if strings.Contains(errs, "could not be fetched") || strings.Contains(verdict, "worker agent probe") {
			t.Errorf("%s: the probe refers to itself or to a document: %s%s", f.Name, out, errs)
		}
		if !found || !strings.Contains(verdict, "\nnext: ") || !strings.Contains(verdict, f.Says) {
			t.Errorf("%s does not say %q and what is next:\n%s%s", f.Name, f.Says, out, errs)
		}
		guardtest.RefuseGoWords(t, f.Name, verdict)
	}
}
