package config

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
)

var update = flag.Bool("update", false, "rewrite the tables in docs/settings.md and docs/chain.md")

// TestSettingsPage: the table of settings is the code's. `go test ./internal/config -run TestSettingsPage -update` rewrites it.
func TestSettingsPage(t *testing.T) {
	checkTable(t, "../../docs/settings.md", "config", markdown(Docs()))
}

// TestChainPage: the table of chains and addresses is the code's. `go test ./internal/config -run TestChainPage -update`
// rewrites it.
func TestChainPage(t *testing.T) { checkTable(t, "../../docs/chain.md", "chains", chainTable(t)) }

// checkTable compares what stands between the marks <!-- name:begin --> and <!-- name:end --> of a page with a table.
func checkTable(t *testing.T, page, name, table string) {
	t.Helper()
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->\n"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(raw), begin)
	old, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table: add the lines %s and %s to it", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	if old == table {
		return
	}
	if !*update {
		t.Fatalf("%s is not the code's: run `go test ./internal/config -run %s -update`", page, t.Name())
	}
	if err := os.WriteFile(page, []byte(before+begin+table+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// chainTable has a row for the mainnets, one for the testnets, and one for each chain with registries of October 2025.
func chainTable(t *testing.T) string {
	var names [2][]string
	var deployments [2]erc8004.Deployment
	var legacy strings.Builder
	row := func(b *strings.Builder, chains string, d erc8004.Deployment) {
		fmt.Fprintf(b, "| %s | `%s` | `%s` | `%s` |\n", chains, d.Identity, d.Reputation, d.Validation)
	}
	for _, c := range erc8004.KnownChains() {
		d, known := erc8004.KnownDeployment(c.ID)
		i := 0
		if c.Testnet {
			i = 1
		}
		name := fmt.Sprintf("%s %d", c.Name, c.ID)
		if !known || names[i] != nil && deployments[i] != d {
			t.Errorf("%s has other addresses than the chains before it", name)
		}
		names[i], deployments[i] = append(names[i], name), d
		if old, has := erc8004.LegacyDeployment(c.ID); has {
			row(&legacy, name+", of October 2025", old)
		}
	}
	var b strings.Builder
	b.WriteString("| chains | IdentityRegistry | ReputationRegistry | ValidationRegistry |\n| --- | --- | --- | --- |\n")
	for i := range names {
		row(&b, strings.Join(names[i], ", "), deployments[i])
	}
	return b.String() + legacy.String()
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
