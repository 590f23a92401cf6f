package config

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table in docs/settings.md")

const (
	settings   = "../../docs/settings.md"
	tableBegin = "<!-- config:begin -->\n"
	tableEnd   = "<!-- config:end -->\n"
)

// TestSettingsPage: the table of settings is the code's. `go test ./internal/config -run TestSettingsPage -update` rewrites it.
func TestSettingsPage(t *testing.T) {
	raw, err := os.ReadFile(settings)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(raw), tableBegin)
	old, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("docs/settings.md has no place for the table: add the lines %s and %s to it", strings.TrimSpace(tableBegin), strings.TrimSpace(tableEnd))
	}
	table := markdown(Docs())
	if old == table {
		return
	}
	if !*update {
		t.Fatal("docs/settings.md is not the code's: run `go test ./internal/config -run TestSettingsPage -update`")
	}
	if err := os.WriteFile(settings, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// markdown writes one row per variable; a list of defaults may break after its commas.
func markdown(docs []Doc) string {
	escape := strings.NewReplacer("|", `\|`, "<", `\<`, "*", `\*`, "\n", " ")
	var b strings.Builder
	b.WriteString("| variable | default | meaning |\n| --- | --- | --- |\n")
	for _, d := range docs {
		text := ""
		switch {
		case strings.Contains(d.Default, " "):
			text = escape.Replace(d.Default) // words, not a value
		case d.Default != "":
			text = "`" + strings.ReplaceAll(d.Default, ",", "`, `") + "`"
		}
		b.WriteString("| `" + d.Name + "` | " + text + " | " + escape.Replace(d.Help) + " |\n")
	}
	return b.String()
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	const want = "| variable | default | meaning |\n| --- | --- | --- |\n" +
		"| `A_<id>` |  | a\\|b \\*c |\n| `B` | `1s`, `2s` | b |\n| `C` | known address | c |\n"
	if got := markdown([]Doc{{"A_<id>", "", "a|b *c"}, {"B", "1s,2s", "b"}, {"C", "known address", "c"}}); got != want {
		t.Errorf("got %s", got)
	}
}
