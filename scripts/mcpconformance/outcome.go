package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/internal/testing/trial/npm"
	"github.com/agentherald/herald/scripts/script"
)

// scenarioTime is longer than the suite's own time limit for the client.
const scenarioTime = time.Minute

// key identifies a run of a scenario. A scenario of two revisions is run twice.
type key struct{ revision, scenario string }

// check is one check of the suite.
type check struct {
	ID           string `json:"id"`
	Description  string `json:"description"`
	Status       string `json:"status"` // SUCCESS FAILURE WARNING SKIPPED INFO
	ErrorMessage string `json:"errorMessage"`
}

// outcome is the result of a scenario.
type outcome struct {
	key
	checks []check
	ended  error       // the suite's own verdict: nil if the suite counts the scenario as passed
	output string      // output of the suite and the client
	may    expectation // how it may fail; the zero value if it must pass
}

// expectation is the check of a scenario that may fail, and the reason. Other failures in that run are consequences
// of this one. If this check does not fail, the scenario fails for another reason.
type expectation struct{ check, reason string }

// run runs one scenario. -force includes scenarios that are not part of the revision, which the suite would otherwise
// skip.
func (s *suite) run(ctx context.Context, revision, scenario string) outcome {
	s.runs++
	folder := filepath.Join(s.scratch, fmt.Sprint(s.runs))
	log := folder + ".log"
	p := script.Must(trial.Program{Name: scenario, Path: s.node, Env: npm.Environment(), Log: log,
		Args: []string{s.program, "client", "--command", s.client, "--scenario", scenario, "--spec-version", revision, "--force", "-o", folder}}.Start())
	defer script.Close(p.End)
	ctx, cancel := context.WithTimeoutCause(ctx, scenarioTime, fmt.Errorf("scenario %s: not within %s", scenario, scenarioTime))
	defer cancel()
	select {
	case <-p.Done():
	case <-ctx.Done():
		script.Check(context.Cause(ctx))
	}
	return outcome{key: key{revision, scenario}, ended: p.Wait(ctx), output: string(script.Must(os.ReadFile(log))), checks: readChecks(folder)}
}

// readChecks reads the suite's results from its folder, at a depth of as many levels as the scenario's name has
// slashes. A scenario without results failed.
func readChecks(folder string) (all []check) {
	for _, pattern := range []string{"*/checks.json", "*/*/checks.json"} {
		for _, file := range script.Must(filepath.Glob(filepath.Join(folder, filepath.FromSlash(pattern)))) {
			var checks []check
			script.Check(json.Unmarshal(script.Must(os.ReadFile(file)), &checks))
			all = append(all, checks...)
		}
	}
	return all
}

// count returns the number of checks with a status.
func (o outcome) count(status string) int {
	n := 0
	for _, c := range o.checks {
		if c.Status == status {
			n++
		}
	}
	return n
}

// passed reports whether the scenario passed. Unlike for the suite, "0 of 0 checks" is not a pass.
func (o outcome) passed() bool {
	return o.ended == nil && o.count("SUCCESS") > 0 && o.count("FAILURE")+o.count("WARNING") == 0
}

// judge returns the result in words, and whether it is expected. A scenario that may fail has to fail in the expected check.
func (o outcome) judge() (word string, isExpected bool) {
	switch {
	case o.may == (expectation{}) && o.passed():
		return "ok", true
	case o.may == (expectation{}):
		return "failed", false
	case o.passed():
		return "passes: take it out of mayFail in scripts/mcpconformance/main.go", false
	case slices.ContainsFunc(o.checks, func(c check) bool { return c.ID == o.may.check && c.bad() }):
		return "failed as expected: " + o.may.reason, true
	}
	return "failed otherwise than expected: not in " + o.may.check, false
}

func (c check) bad() bool { return c.Status == "FAILURE" || c.Status == "WARNING" }

func (o outcome) line() string {
	word, isExpected := o.judge()
	if !isExpected {
		word = "WRONG: " + word
	}
	return fmt.Sprintf("%s  %-45s %3d succeeded %2d failed %2d warned %2d skipped  %s", o.revision, o.scenario,
		o.count("SUCCESS"), o.count("FAILURE"), o.count("WARNING"), o.count("SKIPPED"), word)
}

// details describes every check that did not succeed. If no check failed or warned, it contains the suite's output.
func (o outcome) details() string {
	var b strings.Builder
	for _, c := range o.checks {
		if c.bad() || c.Status == "SKIPPED" {
			fmt.Fprintf(&b, "    %-7s %s: %s %s\n", c.Status, c.ID, c.Description, c.ErrorMessage)
		}
	}
	if o.count("FAILURE")+o.count("WARNING") == 0 && !o.passed() {
		fmt.Fprintf(&b, "    %v; the suite said:\n%s\n", o.ended, strings.TrimSpace(o.output[max(0, len(o.output)-3000):]))
	}
	return b.String()
}

// verdict returns nil if all results are as expected. left contains expectations without a scenario. If whole is set,
// there must be none of them.
func verdict(all []outcome, left map[key]expectation, whole bool) error {
	var errs []error
	passed, failed := 0, 0
	for _, o := range all {
		switch word, isExpected := o.judge(); {
		case !isExpected:
			errs = append(errs, fmt.Errorf("%s %s %s", o.revision, o.scenario, word))
		case o.passed():
			passed++
		default:
			failed++
		}
	}
	if len(all) == 0 {
		errs = append(errs, errors.New("no scenario was run"))
	}
	if whole {
		for k := range left {
			errs = append(errs, fmt.Errorf("%s %s may fail, and the suite does not have it", k.revision, k.scenario))
		}
	}
	fmt.Printf("%d scenarios passed, %d failed as expected, %d went otherwise\n", passed, failed, len(errs))
	return errors.Join(errs...)
}

// scenariosOf parses the suite's list: the names below "Client scenarios", and the names marked [client] in the mixed
// list of scenarios that no revision requires.
func scenariosOf(list string) []string {
	var names []string
	client := false
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] != "-":
			client = strings.HasPrefix(line, "Client scenarios")
		case len(fields) == 2 && client || len(fields) == 3 && fields[2] == "[client]":
			names = append(names, fields[1])
		}
	}
	return names
}
