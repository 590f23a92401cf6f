package config

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

var update = flag.Bool("update", false, "rewrite the tables in docs/reference/settings.md and docs/reference/chains.md")

// TestSettingsPage compares the table of settings with the code. `go test ./internal/operator/config -run TestSettingsPage
// -update` rewrites it.
func TestSettingsPage(t *testing.T) {
	checkTable(t, "../../../docs/reference/settings.md", "config", markdown(Docs()))
}

// TestChainPage compares the tables of chains with the code. `go test ./internal/operator/config -run TestChainPage -update`
// rewrites them.
func TestChainPage(t *testing.T) {
	checkTable(t, "../../../docs/reference/chains.md", "chains", chainTable(t))
	checkTable(t, "../../../docs/reference/chains.md", "paces", paceTable(t))
}

// checkTable compares the text between the marks <!-- name:begin --> and <!-- name:end --> of a page with a table.
func checkTable(t *testing.T, page, name, table string) {
	t.Helper()
	begin, end := "<!-- "+name+":begin -->\n", "<!-- "+name+":end -->\n"
	raw, err := os.ReadFile(page)
	heraldtest.Must(t, err)
	before, rest, begins := strings.Cut(string(raw), begin)
	old, after, ends := strings.Cut(rest, end)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table: add the lines %s and %s to it", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	if old == table {
		return
	}
	if !*update {
		t.Fatalf("%s is not the code's: run `go test ./internal/operator/config -run %s -update`", page, t.Name())
	}
	heraldtest.Must(t, os.WriteFile(page, []byte(before+begin+table+end+after), 0o644))
}

// chainTable returns a row for the mainnets and one for the testnets.
func chainTable(t *testing.T) string {
	var names [2][]string
	var deployments [2]erc8004.Deployment
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
		names[i], deployments[i] = append(names[i], strconv.FormatUint(c.ID, 10)), d
	}
	var b strings.Builder
	b.WriteString("| chains | IdentityRegistry | ReputationRegistry | ValidationRegistry |\n| --- | --- | --- | --- |\n")
	row(&b, "[Mainnets](#confirmations)", deployments[0])
	row(&b, "Testnets "+strings.Join(names[1], ", "), deployments[1])
	return b.String()
}

// paceTable returns an item for each default of the confirmations, with the mainnets that have it. It fails unless a
// testnet has the same values as its mainnet.
func paceTable(t *testing.T) string {
	mainnets, items := map[string]erc8004.Chain{}, map[time.Duration][]string{}
	for _, c := range erc8004.KnownChains() {
		word, _, _ := strings.Cut(c.Name, " ")
		if c.Testnet {
			if mainnet, has := mainnets[word]; has && (c.BlockTime != mainnet.BlockTime || c.Confirmations != mainnet.Confirmations ||
				c.Quiet != mainnet.Quiet || c.Untagged != mainnet.Untagged) {
				t.Errorf("%s has other values than %s", c.Name, mainnet.Name)
			}
			continue
		}
		mainnets[word] = c
		var notes []string
		if c.BlockTime > 0 {
			notes = append(notes, c.BlockTime.String())
		}
		if c.Quiet {
			notes = append(notes, "quiet")
		}
		if c.Untagged {
			notes = append(notes, "untagged")
		}
		item := fmt.Sprintf("[%s](https://%s) %d", c.Name, c.Explorer, c.ID)
		if notes != nil {
			item += " (" + strings.Join(notes, ", ") + ")"
		}
		items[c.Confirmations] = append(items[c.Confirmations], item)
	}
	var b strings.Builder
	for _, depth := range slices.Sorted(maps.Keys(items)) {
		fmt.Fprintf(&b, "- `%.0fs`: %s\n", depth.Seconds(), strings.Join(items[depth], ", "))
	}
	return b.String()
}

// markdown writes one item per variable. A list of defaults may break after its commas.
func markdown(docs []Doc) string {
	escape := strings.NewReplacer("<", `\<`, "*", `\*`, "\n", " ")
	var b strings.Builder
	for _, d := range docs {
		text := ""
		switch {
		case strings.Contains(d.Default, " "):
			text = " (" + escape.Replace(d.Default) + ")" // a description, not a value
		case d.Default != "":
			text = " (`" + strings.ReplaceAll(d.Default, ",", "`, `") + "`)"
		}
		help, file := strings.CutSuffix(d.Help, " Also as "+d.Name+"_FILE.")
		name := "`" + d.Name + "`"
		if file {
			name += ", `" + d.Name + "_FILE`"
		}
		b.WriteString("- " + name + text + ": " + escape.Replace(help) + "\n")
	}
	return b.String()
}
