package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/delivery/waits"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// logged returns an executor that can only log attempts, and a function that returns its log lines.
func logged(level slog.Level) (*Executor, func() []map[string]any) {
	b := &heraldtest.Log{}
	p := &Executor{}
	p.Now, p.Logger = time.Now, slog.New(slog.NewJSONHandler(b, &slog.HandlerOptions{Level: level}))
	return p, func() (lines []map[string]any) {
		for line := range strings.Lines(b.String()) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				panic(err)
			}
			lines = append(lines, m)
		}
		return lines
	}
}

// attemptOf returns an attempt at a delivery for the given agent on chain 8453.
func attemptOf(agent int64) *attempt {
	j := job.Job{ChainID: 8453, AgentID: big.NewInt(agent)}
	return &attempt{claim: &ledger.Claim{Attempt: 1, Job: j}}
}

// putOff makes p log an attempt that was deferred before it did anything.
func putOff(p *Executor, agent int64, why outcome.Reason) {
	o := ledger.Outcome{Status: outcome.Waiting, Reason: why, Free: true}
	p.logAttempt(attemptOf(agent), decision{Outcome: o, verdict: outcome.Verdict{Reason: why}}, ledger.Recorded{}, nil)
}

func TestLevels(t *testing.T) {
	t.Parallel()
	lost := errors.New("Postgres is away")
	waiting := func(why outcome.Reason, free, called bool) ledger.Outcome {
		return ledger.Outcome{Status: outcome.Waiting, Reason: why, Free: free, Called: called}
	}
	for name, c := range map[string]struct {
		out  ledger.Outcome
		away bool
		err  error
		want string
	}{
		"delivered":               {ledger.Outcome{Status: outcome.Delivered}, false, nil, "INFO"},
		"waiting":                 {waiting("server_error", false, true), false, nil, "INFO"},
		"rejected":                {ledger.Outcome{Status: outcome.Rejected, Reason: "tool_error"}, false, nil, "INFO"},
		"held":                    {ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true}, false, nil, "INFO"},
		"dead":                    {ledger.Outcome{Status: outcome.Dead, Reason: "timeout"}, false, nil, "WARN"},
		"throttled":               {waiting("throttled", true, false), false, nil, "DEBUG"},
		"free, but called":        {waiting("agent_busy", true, true), false, nil, "INFO"},
		"our fault":               {waiting("internal_error", false, false), false, nil, "ERROR"},
		"our fault, to the death": {ledger.Outcome{Status: outcome.Dead, Reason: "internal_error"}, false, nil, "ERROR"},
		"Postgres away":           {waiting("internal_error", false, false), true, nil, "INFO"},
		"the claim was lost":      {ledger.Outcome{Status: outcome.Delivered}, false, ledger.ErrFenced, "WARN"},
		"not recorded":            {ledger.Outcome{Status: outcome.Delivered}, false, lost, "ERROR"},
		"throttled, not recorded": {waiting("throttled", true, false), false, lost, "ERROR"},
	} {
		p, said := logged(slog.LevelDebug)
		d := decision{Outcome: c.out, verdict: outcome.Verdict{Reason: c.out.Reason}, away: c.away}
		p.logAttempt(attemptOf(1), d, ledger.Recorded{}, c.err)
		if lines := said(); len(lines) != 1 || lines[0]["level"] != c.want || lines[0]["msg"] != "delivery attempted" {
			t.Errorf("%s: %v, want one line at %s", name, lines, c.want)
		}
	}
}

// TestSummarizeWaits: a flood of waits is logged as one line per agent and minute, the busiest first, and once more
// when the worker stops.
func TestSummarizeWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSummaries)
}

func testSummaries(t *testing.T) {
	p, said := logged(slog.LevelInfo)
	wait := func(agent int64, why outcome.Reason, times int) {
		for range times {
			putOff(p, agent, why)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	go func() { p.waits.Log(ctx, p.Logger, p.Now); close(done) }()
	wait(1, "throttled", 3)
	wait(2, "agent_busy", 40)
	wait(2, "breaker_open", 2)
	heraldtest.Equal(t, "lines within the minute", len(said()), 0)
	time.Sleep(2*waits.Interval + time.Second) // nothing happens in the second minute
	wait(1, "throttled", 1)
	cancel()
	<-done
	wait(3, "throttled", 1)
	(&Runner{executor: p}).Summarize(ctx) // the last summary of a worker that stops
	var got []string
	for _, l := range said() {
		got = append(got, fmt.Sprint(l["msg"], " ", l["agent"], " ", l["count"], " ", l["reasons"]))
	}
	want := []string{
		"deliveries put off, nothing was attempted 8453:2 42 map[agent_busy:40 breaker_open:2]",
		"deliveries put off, nothing was attempted 8453:1 3 map[throttled:3]",
		"deliveries put off, nothing was attempted 8453:1 1 map[throttled:1]",
		"deliveries put off, nothing was attempted 8453:3 1 map[throttled:1]",
	}
	heraldtest.Equal(t, "the log", got, want)
}
