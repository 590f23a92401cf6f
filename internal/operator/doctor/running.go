package doctor

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/agentherald/herald/internal/operator"
)

// listNeeds reports the needs of the overview, except expiring tokens, which checkTokens reports.
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
		if n.About != "tokens" {
			report(n.About, reportWarning("%s: `%s`%s", n.Text, n.Command, advice[n.About]))
		}
	}
	switch {
	case v.Workers > 0 || well["workers"] == "":
	case d.tasks > 0:
		report("workers",
			reportWarning("no worker is running, and %d tasks wait in Redis: `worker` starts one", d.tasks))
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
