package app

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/door/legacy"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// collected is a Registerer that stores the registered collectors.
type collected struct {
	prometheus.Registerer
	all []prometheus.Collector
}

func (c *collected) Register(one prometheus.Collector) error {
	c.all = append(c.all, one)
	return nil
}

var descForm = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", .*variableLabels: \{([^}]*)\}\}$`)

// listMetrics returns the names and labels of all metrics of the worker's collectors.
func listMetrics(t *testing.T) map[string][]string {
	t.Helper()
	reg := &collected{}
	_, err := delivery.NewMetrics(reg)
	heraldtest.Must(t, err)
	_, err = legacy.NewMetrics(reg)
	heraldtest.Must(t, err)
	reg.all = append(reg.all, &gauges{}, &chainFollowers{}, &surroundings{}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	found := map[string][]string{"up": nil} // Prometheus makes it
	for _, c := range reg.all {
		descs := make(chan *prometheus.Desc, 1000)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			m := descForm.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("a metric describes itself in another form: %s", d)
			}
			labels := strings.Split(m[2], ",")
			found[m[1]] = labels
			switch c.(type) {
			case *prometheus.HistogramVec, prometheus.Histogram:
				found[m[1]+"_bucket"] = append(slices.Clone(labels), "le")
			}
		}
	}
	return found
}

var (
	quoted    = regexp.MustCompile(`"[^"]*"`)
	grouping  = regexp.MustCompile(`\b(by|without|on|ignoring)\s*\(([^)]*)\)`)
	window    = regexp.MustCompile(`\[[^\]]*\]`)
	selector  = regexp.MustCompile(`([a-zA-Z_:]+)\s*\{([^}]*)\}`)
	matcher   = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)`)
	word      = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*(\s*\()?`)
	selectors = regexp.MustCompile(`\{[^}]*\}`)
	number    = regexp.MustCompile(`\b[0-9][0-9a-z.]*`)
	operators = []string{"and", "or", "unless", "offset", "bool"}
)

// checkExpression returns the number of metrics in expr, and errors for unknown metrics and labels.
func checkExpression(expr string, known map[string][]string) (named int, faults []string) {
	expr = window.ReplaceAllString(quoted.ReplaceAllString(expr, `""`), "")
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		for _, label := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(known[m[1]], label[1]) {
				faults = append(faults, m[1]+" has no label "+label[1])
			}
		}
	}
	var labels []string
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	expr = selectors.ReplaceAllString(grouping.ReplaceAllString(expr, ""), "")
	told := []string{"job", "instance"} // labels of the metrics in this expression; Prometheus adds these two
	for _, name := range word.FindAllString(number.ReplaceAllString(expr, ""), -1) {
		if strings.HasSuffix(name, "(") || slices.Contains(operators, name) {
			continue
		}
		named++
		has, ok := known[name]
		if !ok {
			faults = append(faults, "there is no metric "+name)
		}
		told = append(told, has...)
	}
	for _, l := range labels {
		if !slices.Contains(told, l) {
			faults = append(faults, "no metric here has the label "+l)
		}
	}
	return named, faults
}

// readRules returns the expressions of the rules, each on one line or in a block folded by >-.
func readRules(t *testing.T, file, each string) (exprs []string) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/prometheus/" + file)
	heraldtest.Must(t, err)
	for _, m := range regexp.MustCompile(`(?m)^ +expr: (?:>-((?:\n {10,}.*)+)|(.+))$`).FindAllStringSubmatch(string(text), -1) {
		exprs = append(exprs, m[1]+m[2])
	}
	if n := strings.Count(string(text), each); n != len(exprs) || n == 0 {
		t.Fatalf("%s: %d rules, %d expressions found", file, n, len(exprs))
	}
	return exprs
}

func readDashboard(t *testing.T) (exprs []string) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/herald.json")
	heraldtest.Must(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	heraldtest.Must(t, json.Unmarshal(text, &board))
	for _, p := range board.Panels {
		if len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			exprs = append(exprs, target.Expr)
		}
	}
	return exprs
}

// TestRulesNameMetrics checks that the rules and dashboards in deploy/ use only metrics and labels of the worker. `make
// alerts` tests the rules themselves with promtool.
func TestRulesNameMetrics(t *testing.T) {
	t.Parallel()
	known := listMetrics(t)
	for _, expr := range slices.Concat(readRules(t, "rules.yml", "- alert: "), readRules(t, "legacy.yml", "- record: "), readDashboard(t)) {
		named, faults := checkExpression(expr, known)
		if len(faults) > 0 || named == 0 {
			t.Errorf("%s: %d metrics, %q", expr, named, faults)
		}
	}
	for expr, want := range map[string]string{
		`max(herald_overdue)`: "there is no metric herald_overdue",
		`sum by (lane) (rate(herald_deliveries_total{state="dead"}[1h] offset 5m)) > 1e9`: "herald_deliveries_total has no label state",
		`sum by (lane) (herald_breakers)`:                                                 "no metric here has the label lane",
	} {
		if _, faults := checkExpression(expr, known); !slices.Contains(faults, want) {
			t.Errorf("%s: %q, want %q", expr, faults, want)
		}
	}
}

// TestMetricsOfServicesAndDisk checks the metrics of unavailable services and of the data folder's disk. Without a data
// folder there are no disk metrics.
func TestMetricsOfServicesAndDisk(t *testing.T) {
	t.Parallel()
	ready := newReadiness()
	ready.setWaiting(redisName, "connection refused")
	for dir, want := range map[string]int{"": 2, t.TempDir(): 4} {
		reg := prometheus.NewRegistry()
		reg.MustRegister(&surroundings{ready: ready, dataDir: dir})
		found, err := reg.Gather()
		heraldtest.Must(t, err)
		told := map[string]float64{}
		for _, f := range found {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				told[name] = m.GetGauge().GetValue()
			}
		}
		free, size := told["herald_data_free_bytes"], told["herald_data_size_bytes"]
		if len(told) != want || told["herald_service_up postgres"] != 1 || told["herald_service_up redis"] != 0 ||
			dir != "" && (free <= 0 || size < free) {
			t.Errorf("in %q: %v", dir, told)
		}
	}
}
