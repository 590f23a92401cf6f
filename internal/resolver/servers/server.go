package servers

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/mcpcall"
)

// Key identifies an agent in a chain's IdentityRegistry: the well-known one, or that of IDENTITY_REGISTRY_<chainId>.
type Key struct {
	ChainID uint64
	AgentID string // decimal
}

func (k Key) String() string { return erc8004.FormatAgent(k.ChainID, k.AgentID) }

// Server is the entry of one agent.
type Server struct {
	// Policy has the fields Enabled and OnUnknown of the entry, which override those of the operator's other policies.
	// If Enabled is false, deliveries are held, even if the job names an endpoint.
	Policy  policy.Policy
	Tools   []string      // only these are called; nil: all
	Timeout time.Duration // maximum duration of a call; 0: not set in the file
	// Display is the endpoint for logs, pages and the database: as written in the file, without a query. It is "" if
	// there is no endpoint.
	Display string

	// endpoint contains values from the environment and is therefore never printed. It is immutable.
	endpoint *mcpcall.Endpoint
}

// Disables reports whether the file disables the agent. If it does, enabling the agent in its row releases none of its
// deliveries. A nil Server, an agent without an entry, is not disabled.
func (s *Server) Disables() bool { return s != nil && s.Policy.Disables() }

// Format prints Display for every verb, so that no secret is printed.
func (s Server) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "server "+s.Display) }

// Endpoint returns the agent's address, or false if the file has none, so that the chain determines it. The caller must
// clone its slices and maps before changing them.
func (s Server) Endpoint() (mcpcall.Endpoint, bool) {
	if s.endpoint == nil {
		return mcpcall.Endpoint{}, false
	}
	return *s.endpoint, true
}

// Allows returns the names of a tool that may be called. names are the name of the tool followed by its aliases. If the
// first is allowed, all are; otherwise only those in the file. It returns nil if none is allowed.
func (s Server) Allows(names []string) []string {
	if s.Tools == nil || len(names) > 0 && slices.Contains(s.Tools, names[0]) {
		return names
	}
	var allowed []string
	for _, n := range names {
		if slices.Contains(s.Tools, n) {
			allowed = append(allowed, n)
		}
	}
	return allowed
}

// bothEndpoints returns the endpoints of two servers; zero: the server has none.
func bothEndpoints(s, o Server) (a, b mcpcall.Endpoint) {
	a, _ = s.Endpoint()
	b, _ = o.Endpoint()
	return a, b
}

// listDifferences returns the fields, named as in the file, in which two servers differ. url and command also differ if
// they are written differently but have the same value, for example with a secret moved to ${NAME}.
func (s Server) listDifferences(o Server) (fields []string) {
	a, b := bothEndpoints(s, o)
	for _, f := range []struct {
		name string
		same bool
	}{
		{"transport", a.Transport == b.Transport},
		{"url", a.URL == b.URL && (a.URL == "" || s.Display == o.Display)},
		{"headers", maps.EqualFunc(a.Headers, b.Headers,
			func(x, y secret.Secret) bool { return x.Compare(y.Reveal()) })},
		{"command", a.Command == b.Command && (a.Command == "" || s.Display == o.Display)},
		{"args", slices.Equal(a.Args, b.Args)},
		{"env", slices.Equal(a.Env, b.Env)},
		{"workingDir", a.Dir == b.Dir},
		{"enabled", s.Disables() == o.Disables()},
		{"tools", slices.Equal(s.Tools, o.Tools)},
		{"timeoutMs", s.Timeout == o.Timeout},
		{"onUnknown", s.Policy.OnUnknown == o.Policy.OnUnknown},
	} {
		if !f.same {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// hasMoved reports whether a client for s must not be used for o.
func (s Server) hasMoved(o Server) bool {
	a, b := bothEndpoints(s, o)
	return a.ClientKey() != b.ClientKey()
}

// Diff lists the changes of a new file, each list sorted by key.
type Diff struct{ Added, Removed, Changed []Change }

// Change is one server before and after. Old is empty for an added server, New for a removed one.
type Change struct {
	Key      Key
	Old, New Server
	Fields   []string // of a changed server, named as in the file; headers includes auth
}

func (c Change) String() string {
	if len(c.Fields) == 0 {
		return c.Key.String()
	}
	return c.Key.String() + " (" + strings.Join(c.Fields, ", ") + ")"
}

// Empty reports whether nothing changed.
func (d Diff) Empty() bool { return len(d.Added)+len(d.Removed)+len(d.Changed) == 0 }

// ListDroppedEndpoints returns the endpoints that are no longer used after the change. Their clients can be closed.
func (d Diff) ListDroppedEndpoints() (out []mcpcall.Endpoint) {
	for _, c := range d.Removed {
		if ep, ok := c.Old.Endpoint(); ok {
			out = append(out, ep)
		}
	}
	for _, c := range d.Changed {
		if ep, ok := c.Old.Endpoint(); ok && c.Old.hasMoved(c.New) {
			out = append(out, ep)
		}
	}
	return out
}

// ListMovedAgents returns the agents whose endpoint or credentials in the file changed. Deliveries that were held
// because of these can be retried.
func (d Diff) ListMovedAgents() (keys []Key) {
	for _, c := range d.Added {
		if c.New.endpoint != nil {
			keys = append(keys, c.Key)
		}
	}
	for _, c := range d.Changed {
		if c.New.endpoint != nil && c.Old.hasMoved(c.New) {
			keys = append(keys, c.Key)
		}
	}
	return keys
}

// compareFiles returns the differences between two files.
func compareFiles(before, after map[Key]Server) (d Diff) {
	for _, k := range sortKeys(before) {
		now, still := after[k]
		if !still {
			d.Removed = append(d.Removed, Change{Key: k, Old: before[k]})
		} else if fields := before[k].listDifferences(now); len(fields) > 0 {
			d.Changed = append(d.Changed, Change{Key: k, Old: before[k], New: now, Fields: fields})
		}
	}
	for _, k := range sortKeys(after) {
		if _, was := before[k]; !was {
			d.Added = append(d.Added, Change{Key: k, New: after[k]})
		}
	}
	return d
}

// sortKeys returns the keys in numerical order.
func sortKeys(m map[Key]Server) []Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.ChainID, b.ChainID), cmp.Compare(len(a.AgentID), len(b.AgentID)),
			cmp.Compare(a.AgentID, b.AgentID))
	})
}
