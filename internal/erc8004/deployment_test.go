package erc8004

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the table in docs/chain.md")

const (
	chainPage  = "../../docs/chain.md"
	tableBegin = "<!-- chains:begin -->\n"
	tableEnd   = "<!-- chains:end -->\n"
)

// TestChainPage: the table of chains and addresses is the code's. `go test ./internal/erc8004 -run TestChainPage -update`
// rewrites it.
func TestChainPage(t *testing.T) {
	raw, err := os.ReadFile(chainPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(raw), tableBegin)
	old, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table: add the lines %s and %s to it", chainPage, strings.TrimSpace(tableBegin), strings.TrimSpace(tableEnd))
	}
	table := chainTable(t)
	if old == table {
		return
	}
	if !*update {
		t.Fatalf("%s is not the code's: run `go test ./internal/erc8004 -run TestChainPage -update`", chainPage)
	}
	if err := os.WriteFile(chainPage, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// chainTable has a row for the mainnets, one for the testnets, and one for each chain with registries of October 2025.
func chainTable(t *testing.T) string {
	var names [2][]string
	var deployments [2]Deployment
	var legacy strings.Builder
	row := func(b *strings.Builder, chains string, d Deployment) {
		fmt.Fprintf(b, "| %s | `%s` | `%s` | `%s` |\n", chains, d.Identity, d.Reputation, d.Validation)
	}
	for _, c := range KnownChains() {
		d, known := KnownDeployment(c.ID)
		if !known {
			t.Errorf("%s (%d) is listed and has no deployment", c.Name, c.ID)
		}
		i := 0
		if c.Testnet {
			i = 1
		}
		name := fmt.Sprintf("%s %d", c.Name, c.ID)
		if deployments[i] != d && names[i] != nil {
			t.Errorf("%s has other addresses than the chains before it", name)
		}
		names[i], deployments[i] = append(names[i], name), d
		if old, has := LegacyDeployment(c.ID); has {
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
