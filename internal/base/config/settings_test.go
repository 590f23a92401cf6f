package config

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/chain/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

var update = flag.Bool("update", false, "rewrite the tables in docs/reference/settings.md and docs/reference/chains.md")

// TestSettingsPage compares the table of settings with the code. `go test ./internal/base/config -run TestSettingsPage
// -update` rewrites it.
func TestSettingsPage(t *testing.T) {
	checkTable(t, "../../../docs/reference/settings.md", "config", markdown(Docs()))
}

// TestChainPage compares the tables of chains with the code. `go test ./internal/base/config -run TestChainPage -update`
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
		t.Fatalf("%s is not the code's: run `go test ./internal/base/config -run %s -update`", page, t.Name())
	}
	heraldtest.Must(t, os.WriteFile(page, []byte(before+begin+table+end+after), 0o644))
}

// chainTable returns a row for the mainnets, one for the testnets, and one for each chain with registries of October
// 2025.
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
	row(&b, "[Mainnets](#block-times-and-nodes)", deployments[0])
	row(&b, strings.Join(names[1], ", "), deployments[1])
	return b.String() + legacy.String()
}

// chainNotes contains facts about chains that no code depends on: how their blocks become final, and limits of public
// nodes.
var chainNotes = map[uint64][2]string{
	1:          {"`finalized`, 15–19 min", ""},
	10:         {"`finalized`, 18–20 min", "more than 10 calls in a request (413)"},
	56:         {"`finalized`, 1–5 s", "the official nodes `eth_getLogs`; another one more than 5,000 blocks"},
	100:        {"`finalized`, 3 min", ""},
	137:        {"`finalized`, 6 s; Chainlink waits for 500 blocks instead", ""},
	143:        {"2 s", ""},
	196:        {"`finalized`, 16 min", ""},
	295:        {"3–5 s; `safe` and `finalized` are the newest block", "more than 1,000 blocks of several addresses, more than 7 days"},
	1088:       {"2 h", ""},
	1776:       {"at once, 3 s", ""},
	4326:       {"69 min", "Alchemy's `eth_getBlockReceipts`"},
	4663:       {"`safe`, `finalized`", "Ankr's more than 10,000 blocks"},
	5000:       {"18 min", ""},
	8453:       {"`finalized`, 20 min; in a batch on Ethereum after 2 min", "more than 10 calls in a request (200 with one error)"},
	42161:      {"`finalized`, 17–18 min", ""},
	42220:      {"", "ranges of 50,000 blocks are cut silently; 2,000 are not"},
	43114:      {"`finalized`, 1–2 s", ""},
	59144:      {"1 s; hard with its proof", ""},
	534352:     {"50 min", ""},
	1187947933: {"at once (inferred)", "more than 2,000 blocks; old blocks; core nodes ignore the block of `eth_call`"},
}

// paceTable returns a row for each mainnet. It fails unless a testnet has the same values as its mainnet.
func paceTable(t *testing.T) string {
	mainnets := map[string]erc8004.Chain{}
	notes := maps.Clone(chainNotes)
	var b strings.Builder
	b.WriteString("| chain | block time | finality | public nodes refuse or lack | Herald's confirmations |\n| --- | --- | --- | --- | --- |\n")
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
		pace := ""
		if c.BlockTime > 0 {
			pace = c.BlockTime.String()
		}
		depth := fmt.Sprintf("`%.0fs`", c.Confirmations.Seconds())
		if c.Quiet {
			depth += ", quiet"
		}
		if c.Untagged {
			depth += ", untagged"
		}
		fmt.Fprintf(&b, "| [%s](https://%s) %d | %s | %s | %s | %s |\n", c.Name, c.Explorer, c.ID, pace, notes[c.ID][0], notes[c.ID][1], depth)
		delete(notes, c.ID)
	}
	for id := range notes {
		t.Errorf("the notes name chain %d, which is not known", id)
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

func TestMarkdown(t *testing.T) {
	t.Parallel()
	const want = "- `A_<id>`: a|b \\*c\n- `B` (`1s`, `2s`): b\n- `C`, `C_FILE` (known address): c\n"
	if got := markdown([]Doc{{"A_<id>", "", "a|b *c"}, {"B", "1s,2s", "b"}, {"C", "known address", "c Also as C_FILE."}}); got != want {
		t.Errorf("got %s", got)
	}
}
