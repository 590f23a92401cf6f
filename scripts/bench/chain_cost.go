//go:build linux && chain

package main

import (
	"context"
	"os/exec"
	"regexp"

	"github.com/agentherald/herald/scripts/script"
)

// costRow matches a row of the table that TestCostOfFollowing logs.
var costRow = regexp.MustCompile(`(?m)\| \S+ \|.*\|$`)

// measureCost runs the follower's test that counts its requests and calls in simulated time.
func (b *chainBench) measureCost(ctx context.Context) {
	out, err := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-v", "-run", "^TestCostOfFollowing$",
		"./internal/chain/follower").CombinedOutput()
	b.report.costs = costRow.FindAllString(string(out), -1)
	if err != nil || len(b.report.costs) == 0 {
		script.Fail("TestCostOfFollowing failed (%v), or logged no row:\n%s", err, out)
	}
}
