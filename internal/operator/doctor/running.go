package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/operator"
)

// listNeeds reports the needs of the overview, except expiring tokens and chains that cannot be read, which checkTokens
// and checkFollowed report.
func (d *doctor) listNeeds(ctx context.Context) (findings []Finding) {
	if !d.migrated {
		return nil
	}
	v, err := ask(ctx, func(ctx context.Context) (operator.Overview, error) { return operator.ReadState(ctx, d.store) })
	if err != nil {
		return reportFailure("%v", err)
	}
	v.OpenBreakers = d.countBreakers(ctx)
	well := map[string]string{"deliveries": "none is held or overdue, and none failed in the last hour",
		"workers": fmt.Sprintf("%d running", v.Workers)}
	report := func(about string, found []Finding) {
		found[0].Check = about
		findings = append(findings, found[0])
		delete(well, about)
	}
	advice := map[string]string{"deliveries": ", and `worker delivery show ID` says what to do",
		"agents": ", and `worker agent show CHAIN:AGENT` says what to do", "workers": " starts one"}
	for _, n := range v.NeedsAttention() {
		if n.About != "tokens" && n.About != "chains" {
			report(n.About, reportWarning("%s: `%s`%s", n.Text, n.Command, advice[n.About]))
		}
	}
	switch {
	case v.Workers > 0 || well["workers"] == "":
	case d.tasks > 0:
		report("workers",
			reportWarning("no worker is running, and %s in Redis: `worker` starts one",
				text.Count(d.tasks, "task waits", "tasks wait")))
	default:
		well["workers"] = "none is running, and no delivery is open"
	}
	for _, about := range slices.Sorted(maps.Keys(well)) {
		report(about, reportOK("%s", well[about]))
	}
	return findings
}

// countBreakers returns the number of open circuit breakers of the worker that runs on this machine, or 0 if it does
// not answer, which compareSettings reports.
func (d *doctor) countBreakers(ctx context.Context) int {
	var stats struct{ OpenBreakers int }
	if d.worker == "" {
		return 0
	}
	if code, err := getJSON(ctx, d.worker, "/v1/stats", d.Settings.APIToken, &stats); err != nil ||
		code != http.StatusOK {
		return 0
	}
	return stats.OpenBreakers
}

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
		// A reader that stopped leaves its error behind.
		return reportWarning("it is not read since %s; the reader's last error: %s. If that is repaired, check that a "+
			"worker with HERALD_WATCH, or `enqueue watch %d`, runs", f.StalledSince.UTC().Format(time.DateTime),
			text.Printable(f.StalledWhy), c.ChainID)
	case f.Checks != nil && f.Checks.Omission != nil && time.Since(f.Checks.Omission.At) < omissionShown:
		o := f.Checks.Omission
		return reportWarning("node %d of RPC_URL_%d left out %s of block %d: "+
			"name another node, or a second one to compare with; `worker chain show %[2]d`",
			o.Node, c.ChainID, text.Count(o.Logs, "log", "logs"), o.Block)
	case f.LagTime == nil:
		return nil // the node does not answer, which checkChains reports, or there is none
	case *f.LagTime >= behindAfter.Seconds():
		return reportWarning("it is read %s behind its head, its events come %s late: "+
			"a worker with HERALD_WATCH, or `enqueue watch %d`, has to run, "+
			"and their log says what they wait for; `worker chain show %[3]d`",
			text.Count(*f.LagBlocks, "block", "blocks"),
			time.Duration(*f.LagTime*float64(time.Second)).Round(time.Second), c.ChainID)
	}
	return reportOK("is read up to block %d, %d behind its head", f.Next-min(f.Next, 1), *f.LagBlocks)
}

// findSlowestContract returns the index of the contract's cursor with the lowest next block, or -1 without one. It
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
