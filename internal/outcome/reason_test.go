package outcome

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReasonsPage: docs/reference/reasons.md explains each reason, and no other, in the section of its ending.
func TestReasonsPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := map[Reason]bool{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		status, _, _ := strings.Cut(strings.ToLower(title), ":")
		for _, row := range regexp.MustCompile("(?m)^- `([a-z_]+)`:(.*)").FindAllStringSubmatch(section, -1) {
			r, want, free := Reason(row[1]), status, status == "held" || status == "waiting at no cost" || strings.Contains(row[2], "at no cost")
			switch {
			case strings.HasPrefix(row[2], " dead:"):
				want = "dead"
			case strings.HasPrefix(status, "waiting"):
				want = "waiting"
			}
			if explained[r] = true; string(r.Ending()) != want || r.Free() != free {
				t.Errorf("%s: %s, free %t; the page says: %s", r, r.Ending(), r.Free(), title)
			}
		}
	}
	missing := slices.DeleteFunc(Reasons(), func(r Reason) bool { return explained[r] })
	if len(explained) < 30 || len(missing) > 0 {
		t.Errorf("%d reasons are explained; missing: %v", len(explained), missing)
	}
}
