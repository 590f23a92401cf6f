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

// Explain returns advice about the variable. It is empty if the variable is not a spelling mistake.
func (m Misspelt) Explain() string {
	switch {
	case m.isForeign():
		return ""
	case m.Nearest == "":
		return "nothing reads it: unset it, or see `worker config` for the names that there are"
	}
	return "nothing reads it: did you mean " + m.Nearest + "?"
}

// Misspelt lists variables that are probably misspelt: HERALD_ variables that Herald does not read, and variables whose
// names are similar to REDIS_URL, RPC_URL_8453 and other names without that prefix.
func (c *Config) Misspelt() []Misspelt {
	return slices.DeleteFunc(slices.Clone(c.unread), Misspelt.isForeign)
}

// maxTypos is the largest edit distance between a misspelt name and the name that is suggested.
const maxTypos = 2

// fromOrchestrator matches the variables that Kubernetes and Docker set for services named herald, herald-redis and the
// like. They are not spelling mistakes.
var fromOrchestrator = regexp.MustCompile(
	`^HERALD_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$`)

// forTests lists variables that only the project's tests and tools read.
var forTests = []string{"HERALD_REQUIRE_SERVICES", "HERALD_HISTORY_SEED"}

// isForeign reports whether another program sets the variable on purpose.
func (m Misspelt) isForeign() bool {
	return fromOrchestrator.MatchString(m.Name) || slices.Contains(forTests, m.Name)
}

// listUnread returns the variables that are set but that Herald does not read: first all with the prefix HERALD_, then
// others with names that are similar to Herald's. They are reported and are not an error.
func (c *Config) listUnread(env map[string]string) []Misspelt {
	var ours, others []string // correct names: with the prefix HERALD_, and without it
	for _, v := range c.variables() {
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
	var unread, similar []Misspelt
	for _, name := range slices.Sorted(maps.Keys(env)) {
		_, isRead := c.public[name]
		if isRead || env[name] == "" || slices.Contains(ours, name) || slices.Contains(others, name) {
			continue
		}
		if rest, hasPrefix := strings.CutPrefix(name, "HERALD_"); hasPrefix {
			unread = append(unread, Misspelt{name, cmp.Or(findNearestName(name, ours), findNearestOfChain(name),
				findNearestName(rest, others), findNearestOfChain(rest))})
			continue
		}
		near := cmp.Or(findNearestName(name, others), findNearestOfChain(name))
		if near != "" && env[near] == "" { // if both are set, the other variable belongs to another program
			similar = append(similar, Misspelt{name, near})
		}
	}
	return append(unread, similar...)
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
	var prefixes []string
	for _, v := range new(Chain).variables("") {
		prefixes = append(prefixes, v.Name)
	}
	if best := findNearestName(stem, prefixes); best != "" {
		return best + id
	}
	return ""
}
