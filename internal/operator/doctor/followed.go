package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
)

// behindAfter is the lag at which a chain counts as late.
const behindAfter = time.Minute

// omissionShown is how long the doctor reports that a node left out logs.
const omissionShown = 7 * 24 * time.Hour

// checkFollowed reports the followed chains that are late: those of HERALD_WATCH and of `enqueue watch`. It ignores
// backfills, which may take any time.
func (d *doctor) checkFollowed(ctx context.Context) (findings []Finding) {
	if !d.migrated {
		return nil
	}
	chains, err := ask(ctx, d.ListChains)
	if err != nil {
		return reportFailure("%v", err)
	}
	for _, c := range chains {
		for _, f := range judgeFollowed(c) {
			f.Check = fmt.Sprintf("chain %d", c.ChainID)
			findings = append(findings, f)
		}
	}
	return findings
}

func judgeFollowed(c operator.ChainState) []Finding {
	i := findSlowestContract(c.Cursors)
	switch {
	case i < 0 && c.Watched:
		return reportWarning(
			"HERALD_WATCH names it, but it has not been read yet: is a worker running with this setting?")
	case i < 0:
		return nil
	}
	f := c.Cursors[i]
	switch {
	case f.StalledSince != nil:
		return reportWarning("it is not read since %s: %s", f.StalledSince.UTC().Format(time.DateTime),
			text.Printable(f.StalledWhy))
	case f.Checks != nil && f.Checks.Omission != nil && time.Since(f.Checks.Omission.At) < omissionShown:
		o := f.Checks.Omission
		return reportWarning("node %d of RPC_URL_%d left out %d logs of block %d: "+
			"name another node, or a second one to compare with; `worker chain show %[2]d`",
			o.Node, c.ChainID, o.Logs, o.Block)
	case f.LagTime == nil:
		return nil // the node does not answer, which checkChains reports, or there is none
	case *f.LagTime >= behindAfter.Seconds():
		return reportWarning("it is read %d blocks behind its head, its events come %s late: "+
			"a worker with HERALD_WATCH, or `enqueue watch %d`, has to run, "+
			"and their log says what they wait for; `worker chain show %[3]d`", *f.LagBlocks,
			time.Duration(*f.LagTime*float64(time.Second)).Round(time.Second), c.ChainID)
	}
	return reportOK("is read up to block %d, %d behind its head", f.Next-min(f.Next, 1), *f.LagBlocks)
}

// findSlowestContract returns the index of the contract's cursor that was read least far, or -1 if there is none. It
// ignores backfills, and former contracts, which the settings no longer list.
func findSlowestContract(all []operator.CursorState) int {
	slowest := -1
	for i, f := range all {
		if f.End == nil && !f.Former && (slowest < 0 || f.Next < all[slowest].Next) {
			slowest = i
		}
	}
	return slowest
}
