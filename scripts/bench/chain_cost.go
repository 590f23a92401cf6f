//go:build linux && chain

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
)

// costRow matches a row of the table that TestCostOfFollowing logs.
var costRow = regexp.MustCompile(`(?m)\| \S+ \|.*\|$`)

// measureCost runs the follower's test that counts its requests and calls in simulated time.
func (b *chainBench) measureCost(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-v", "-run", "^TestCostOfFollowing$",
		"./internal/chain/follower").CombinedOutput()
	b.report.costs = costRow.FindAllString(string(out), -1)
	if err == nil && len(b.report.costs) == 0 {
		err = errors.New("it logged no row")
	}
	if err != nil {
		return fmt.Errorf("run TestCostOfFollowing: %w\n%s", err, out)
	}
	return nil
}
