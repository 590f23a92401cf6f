package main

import (
	"path/filepath"
	"testing"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestAgentPolicy checks that the command sets and removes the policies of an agent, and shows each rule with its level.
func TestAgentPolicy(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.accept(42, registryOf(t, 8453))
	dir := t.TempDir()
	fallback, operators, own := filepath.Join(dir, "default.json"), filepath.Join(dir, "operator.json"), filepath.Join(dir, "own.json")
	write(t, fallback, `{"maxPerSecond":9,"filters":[{"action":"skip","when":{"tag1":"noise"}}]}`)
	write(t, operators, `{"onUnknown":"hold","filters":[{"action":"deliver","when":{"tag1":"good"}}]}`)
	write(t, own, `{"filters":[{"action":"skip"}]}`)
	d.env = append(d.env, "HERALD_POLICY_FILE="+fallback)
	const first, second = `operator 1 {"action":"deliver","when":{"tag1":"good"}}`, `default - {"maxPerSecond":9} default 1 {"action":"skip","when":{"tag1":"noise"}}`
	d.says(0, second, "agent", "policy", "8453:42")
	d.says(0, `onUnknown=hold order=strict LEVEL RULE CONTENT operator - {"onUnknown":"hold"} `+first+" "+second, "agent", "policy", "8453:42", "--file", operators)
	d.says(0, first+" "+second, "agent", "policy", "8453:42")
	d.says(0, second+` agent 1 {"action":"skip"}`, "agent", "policy", "8453:42", "--file", own, "--own")
	d.says(0, `onUnknown=resend order=off LEVEL RULE CONTENT operator - {"onUnknown":"resend","order":"off","batchSize":7,"pauseUntil":"2030-12-31T18:00:00Z"} `+first,
		"agent", "policy", "8453:42", "onUnknown=resend", "order=off", "batchSize=7", "pauseUntil=2030-12-31T18:00:00Z")
	type level struct{ Level string }
	left := ask[struct{ Levels []level }](d, "agent", "policy", "8453:42", "--remove").Levels
	heraldtest.Equal(t, "the other levels", left, []level{{"default"}, {"agent"}})
	write(t, fallback, `{"enabled":1}`)
	d.says(0, `warning: `+fallback+`: enabled: must be true or false`, "agent", "policy", "8453:42")
	d.says(exitMisuse, "operator.json: onUnknown: is unknown", "agent", "policy", "8453:42", "--file", operators, "--own")
	d.says(exitMisuse, "set either settings", "agent", "policy", "8453:42", "--own")
}

func TestPolicyTest(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.ended(41, ledger.Outcome{Status: outcome.Delivered, Called: true, AgentOK: true}) // from client 1
	first, second := d.ended(42, dead), d.ended(42, dead)
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.json")
	write(t, filepath.Join(dir, "clients.txt"), "0x0000000000000000000000000000000000000002\n")
	write(t, policy, `{"filters":[{"action":"deliver","when":{"client":{"file":"clients.txt"}}},
		{"action":"skip","when":{"agent":"8453:42","max":1}},{"action":"skip","when":{"chain":1}}]}`)

	type rule struct {
		Count   int
		Samples []string
	}
	r := ask[struct {
		operator.PolicyTest
		Rules []rule `json:"rules"`
	}](d, "policy", "test", policy)
	if r.Delivered != 2 || r.Skipped != 1 || r.NoMatch != 1 || r.Unknown != 0 || len(r.Warnings) != 1 || len(r.Rules) != 3 {
		t.Fatalf("%+v", r)
	}
	heraldtest.Equal(t, "the rules", r.Rules[:2], []rule{{1, []string{first.String()}}, {1, []string{second.String()}}})
	d.says(0, "2 1 "+second.String(), "policy", "test", policy)
	d.says(0, "2 delivered, 1 skipped, 0 without a job", "policy", "test", policy)
	d.says(0, "1 delivered, 0 skipped", "policy", "test", policy, "--status", "delivered")

	jobs := filepath.Join(dir, "jobs.jsonl")
	line := func(agent string) string {
		return `{"type":"NewFeedback","chainId":8453,"agentId":` + agent + `,"clientAddress":"0x0000000000000000000000000000000000000003","feedbackIndex":1,"value":"1","valueDecimals":0}`
	}
	write(t, jobs, line("42")+"\n{\n"+line("43"))
	d.env = append(d.env, "DATABASE_URL=postgres://127.0.0.1:1/none") // it needs no store
	d.says(0, "1 delivered, 1 skipped, 1 without a job", "policy", "test", policy, "--jobs", jobs)
	write(t, jobs, `{"type":"FeedbackRevoked","chainId":8453,"agentId":42,"clientAddress":"0x0000000000000000000000000000000000000003","feedbackIndex":1,"reason":"reorg","blockNumber":1,`+
		`"blockHash":"0x1111111111111111111111111111111111111111111111111111111111111111"}`)
	d.says(0, "1 delivered, 0 skipped, 0 without a job", "policy", "test", policy, "--jobs", jobs) // no filter skips a retraction

	write(t, policy, `{"filters":[{"action":"skip","when":{"tag":"x"}}]}`)
	d.says(exitMisuse, "policy.json: filters[0].when.tag: is unknown: use one of kind,", "policy", "test", policy)
	d.says(exitMisuse, "the policy cannot be read: ", "policy", "test", filepath.Join(dir, "none.json"))
}

// TestReplayLeavesFiltered checks that a replay by a filter counts as untouched, and does not try, deliveries that it may
// not replay: a filter of the agent's policy skipped them, they are running, or an operator cancelled them.
func TestReplayLeavesFiltered(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	failed := d.ended(42, dead)
	skipped := d.ended(42, ledger.Outcome{Status: outcome.Skipped, Reason: "filtered", Free: true})
	d.ended(42, ledger.Outcome{Status: outcome.Cancelled, Reason: "operator"})
	d.accept(42, registryOf(t, 8453)) // runs
	line := []string{"delivery", "replay", "--agent", "8453:42"}
	d.says(0, "1 dead not moved: 1 cancelled (only with --status cancelled) not moved: 1 running (they are on their way) not moved: 1 skipped (without a job: retention deleted it, or it was invalid; or skipped by a filter: replay these with --reason filtered --force) 1 would be queued anew", line...)
	d.says(0, "1 of 1 queued anew", append(line, "--yes")...)
	d.says(0, "no delivery matches", append(line, "--force", "--yes")...)
	d.says(exitMisuse, "--reason filtered: with --force", append(line, "--reason", "filtered")...)
	heraldtest.Equal(t, "d.status(failed)", d.status(failed), "queued")
	heraldtest.Equal(t, "d.status(skipped)", d.status(skipped), "skipped filtered")
	d.says(0, "1 of 1 queued anew", append(line, "--reason", "filtered", "--force", "--yes")...)
	heraldtest.Equal(t, "despite the filter", d.status(skipped), "queued")
	heraldtest.Equal(t, "audited changes", len(d.audits()), 2)
}

// TestEnableDespitePolicy checks that a command which cannot enable an agent, because a policy disables it, says so, and
// that the next step of a held delivery leads to the policy.
func TestEnableDespitePolicy(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	held := d.ended(42, ledger.Outcome{Status: outcome.Held, Reason: "agent_disabled", Free: true, Elsewhere: true})
	d.says(0, `operator - {"enabled":false}`, "agent", "policy", "8453:42", "enabled=false")
	d.says(0, "worker agent policy 8453:42", "delivery", "show", held.String())
	d.says(exitFailed, "a policy disables", "agent", "enable", "8453:42")
	heraldtest.Equal(t, "the delivery", d.status(held), "held agent_disabled")
	d.says(0, `operator - {"enabled":true}`, "agent", "policy", "8453:42", "enabled=true")
	d.says(0, "1 held delivery was released", "agent", "enable", "8453:42")
}
