package config

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/text"
)

// Misspelt is a variable that is set but that Herald does not read.
type Misspelt struct {
	Name    string
	Nearest string // the variable that was probably meant; empty if none is similar
}

// Explain returns advice about the variable.
func (m Misspelt) Explain() string {
	if m.Nearest == "" {
		return "nothing reads it: unset it, or see `worker config` for the names that there are"
	}
	return "nothing reads it: did you mean " + m.Nearest + "?"
}

// Misspelt lists variables that are probably misspelt: HERALD_ variables that Herald does not read, and variables whose
// names are similar to REDIS_URL, RPC_URL_8453 and other names without that prefix.
func (c *Config) Misspelt() []Misspelt { return c.misread }

// maxTypos is the largest edit distance between a misspelt name and the name that is suggested.
const maxTypos = 2

// fromOrchestrator matches the variables that Kubernetes and Docker set for services named herald, herald-redis and the
// like. They are not spelling mistakes.
var fromOrchestrator = regexp.MustCompile(
	`^HERALD_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$`)

// forTests lists variables that only the project's tests and tools read.
var forTests = []string{"HERALD_REQUIRE_SERVICES", "HERALD_HISTORY_SEED"}

// findMisspelt returns the variables that are probably misspelt, each with the most similar correct name.
func findMisspelt(env map[string]string, unread []string) (found []Misspelt) {
	var ours, others []string // correct names: with the prefix HERALD_, and without it
	for _, v := range listVariables() {
		names := []string{v.Name}
		if v.Secret {
			names = append(names, v.Name+"_FILE")
		}
		if strings.HasPrefix(v.Name, "HERALD_") {
			ours = append(ours, names...)
		} else {
			others = append(others, names...)
		}
	}
	for _, name := range unread {
		if !fromOrchestrator.MatchString(name) && !slices.Contains(forTests, name) {
			near := findNearestName(name, ours)
			if rest := strings.TrimPrefix(name, "HERALD_"); near == "" {
				near = cmp.Or(findNearestName(rest, others), findNearestOfChain(rest)) // without the prefix
			}
			found = append(found, Misspelt{name, near})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if env[name] == "" || strings.HasPrefix(name, "HERALD_") || slices.Contains(others, name) {
			continue
		}
		near := cmp.Or(findNearestName(name, others), findNearestOfChain(name))
		if near != "" && env[near] == "" { // if both are set, the other variable belongs to another program
			found = append(found, Misspelt{name, near})
		}
	}
	return found
}

// findNearestName returns the name in right that is most similar to name, or "" if none is similar.
func findNearestName(name string, right []string) string {
	return text.FindNearest(name, right, maxTypos)
}

// findNearestOfChain is findNearestName for names that end in a chain id: it returns RPC_URL_8453 for RPCURL_8453.
func findNearestOfChain(name string) string {
	stem := strings.TrimRight(name, "0123456789")
	id := name[len(stem):]
	if id == "" {
		return ""
	}
	if best := findNearestName(stem, chainPrefixes); best != "" {
		return best + id
	}
	return ""
}
