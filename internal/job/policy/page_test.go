package policy_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/job/policy"
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
	events := sample(20260730, 10_000)
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
