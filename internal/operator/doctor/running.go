package doctor

import (
	"context"
	"net/http"
	"slices"

	"github.com/agentherald/herald/internal/operator"
)

// listNeeds reports what a person should look at now, except tokens, which checkTokens names.
func (d *doctor) listNeeds(ctx context.Context) (findings []Finding) {
	if !d.migrated {
		return nil
	}
	v, err := ask(ctx, func(ctx context.Context) (operator.Overview, error) { return operator.ReadState(ctx, d.store) })
	if err != nil {
		return reportFailure("%v", err)
	}
	v.OpenBreakers = d.countBreakers(ctx)
	needs := slices.DeleteFunc(v.NeedsAttention(), func(n operator.Need) bool { return n.About == "tokens" })
	advice := map[string]string{"deliveries": ", and `worker delivery show ID` says what to do",
		"agents": ", and `worker agent show CHAIN:AGENT` says what to do", "workers": " starts one"}
	report := func(about string, found []Finding) {
		found[0].Check = about
		findings = append(findings, found[0])
	}
	for _, n := range needs {
		report(n.About, reportWarning("%s: `%s`%s", n.Text, n.Command, advice[n.About]))
	}
	has := func(about string) bool {
		return slices.ContainsFunc(needs, func(n operator.Need) bool { return n.About == about })
	}
	if !has("deliveries") {
		report("deliveries", reportOK("none is held or overdue, and none failed in the last hour"))
	}
	switch {
	case v.Workers > 0:
		report("workers", reportOK("%d running", v.Workers))
	case has("workers"):
	case d.tasks > 0:
		report("workers", reportWarning("no worker is running, and %d tasks wait in Redis: `worker` starts one", d.tasks))
	default:
		report("workers", reportOK("none is running, and no delivery is open"))
	}
	return findings
}

// countBreakers returns the number of open circuit breakers of the worker that runs on this machine, or 0 if it does not
// answer, which compareSettings reports.
func (d *doctor) countBreakers(ctx context.Context) int {
	var stats struct{ OpenBreakers int }
	if d.worker == "" {
		return 0
	}
	if code, err := getJSON(ctx, d.worker, "/v1/stats", d.Settings.APIToken, &stats); err != nil || code != http.StatusOK {
		return 0
	}
	return stats.OpenBreakers
}
