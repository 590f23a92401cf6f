package config

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Misspelt is a variable that is set and that nothing reads.
type Misspelt struct {
	Name    string
	Nearest string // the variable that may be meant; empty: none is near
}

// Explain says it for people.
func (m Misspelt) Explain() string {
	if m.Nearest == "" {
		return "nothing reads it: unset it, or see `worker config` for the names that there are"
	}
	return "nothing reads it: did you mean " + m.Nearest + "?"
}

// Misspelt lists variables that somebody may have mistyped: HERALD_ names that nothing reads, and names near to
// REDIS_URL and the like.
func (c *Config) Misspelt() []Misspelt { return c.misread }

// maxTypos is how many letters a name may be away from the one that was meant.
const maxTypos = 2

// fromOrchestrator are names that Kubernetes and Docker set for services called herald, herald-redis, …: nobody typed
// them.
var fromOrchestrator = regexp.MustCompile(`^HERALD_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$`)

// forTests are names that the project's own tests and tools read, not the worker.
var forTests = []string{"HERALD_REQUIRE_SERVICES", "HERALD_HISTORY_SEED"}

// findMisspelt looks for the nearest right name of what is not read.
func findMisspelt(env map[string]string, unread []string) (found []Misspelt) {
	var ours, others []string // right names: with the prefix HERALD_, without
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
				near = cmp.Or(findNearestName(rest, others), findNearestOfChain(rest)) // the prefix is too much
			}
			found = append(found, Misspelt{name, near})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if env[name] == "" || strings.HasPrefix(name, "HERALD_") || slices.Contains(others, name) {
			continue
		}
		near := cmp.Or(findNearestName(name, others), findNearestOfChain(name))
		if near != "" && env[near] == "" { // where both are set, the other one is somebody else's
			found = append(found, Misspelt{name, near})
		}
	}
	return found
}

// findNearestName gives the right name that is the fewest letters away, at most maxTypos; empty: none is.
func findNearestName(name string, right []string) (best string) {
	least := maxTypos + 1
	for _, r := range right {
		if d := editDistance(name, r, least); d < least {
			least, best = d, r
		}
	}
	return best
}

// findNearestOfChain does the same for names that end in a chain's number: RPCURL_8453 for RPC_URL_8453.
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

// editDistance is Levenshtein's: how many letters are to be put in, left out or changed; limit or more is told as
// limit.
func editDistance(a, b string, limit int) int {
	if max(len(a), len(b))-min(len(a), len(b)) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], limit)
}
