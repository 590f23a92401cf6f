package policy_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/testing/policytest"
)

var update = flag.Bool("update", false, "rewrite the figures in docs/operator/filters.md")

// TestFiltersPage checks that the templates of docs/operator/filters.md are valid, and compares the page's figures with
// their decisions about a sample. `go test ./internal/job/policy -run TestFiltersPage -update` rewrites the figures.
func TestFiltersPage(t *testing.T) {
	t.Parallel()
	const page, begin, end = "../../../docs/operator/filters.md", "<!-- templates:begin -->\n", "<!-- templates:end -->\n"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(raw), begin)
	old, after, ends := strings.Cut(rest, end)
	sections := strings.Split(after, "\n### ")[1:]
	if !begins || !ends || len(sections) != 3 {
		t.Fatalf("%s has %d templates, and these marks: %t, %t", page, len(sections), begins, ends)
	}
	events := policytest.Sample(20260730, 10_000)
	table := "| template | delivered | skipped |\n| --- | ---: | ---: |\n"
	for _, section := range sections {
		title, body, _ := strings.Cut(section, "\n")
		_, body, _ = strings.Cut(body, "```json\n")
		document, _, _ := strings.Cut(body, "```")
		p, warnings, err := policy.Parse([]byte(document), policy.Default, nil)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, %q", title, err, warnings)
		}
		skipped := 0
		for _, e := range events {
			if (policy.Levels{Default: p}).Decide(e).Skip {
				skipped++
			}
		}
		table += fmt.Sprintf("| %s | %d | %d |\n", title, len(events)-skipped, skipped)
	}
	switch {
	case old == table:
	case !*update:
		t.Errorf("the figures of %s are outdated: run `go test ./internal/job/policy -run %s -update`\n%s", page, t.Name(), table)
	default:
		err = os.WriteFile(page, []byte(before+begin+table+end+after), 0o644)
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSample checks that the sample has the measured shares.
func TestSample(t *testing.T) {
	t.Parallel()
	const n = 10_000
	tags, clients, outside := map[string]int{}, map[string]int{}, 0
	inRange := policy.Levels{Default: mustParse(t, `{"filters":[{"action":"deliver","when":{"min":0,"max":100}},{"action":"skip"}]}`)}
	for _, e := range policytest.Sample(20260730, n) {
		tags[e.Tag1]++
		clients[e.Client.Hex()]++
		if inRange.Decide(e).Skip {
			outside++
		}
	}
	ten := 0
	for i := range 10 {
		ten += clients[policytest.Client(i).Hex()]
	}
	for name, c := range map[string]struct {
		got  int
		want float64
	}{
		"miner-vouch": {tags["miner-vouch"], 0.664}, "trust": {tags["trust"], 0.084}, "trustScore": {tags["trustScore"], 0.025},
		"starred": {tags["starred"], 0.023}, "top client": {clients[policytest.Client(0).Hex()], 0.106}, "top ten": {ten, 0.575},
		"outside 0 to 100": {outside, 0.004},
	} {
		if share := float64(c.got) / n; share < c.want*0.8-0.001 || share > c.want*1.2+0.001 {
			t.Errorf("%s: %.3f of the events, want %.3f", name, share, c.want)
		}
	}
}
