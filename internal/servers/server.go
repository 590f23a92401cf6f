package servers

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/secret"
)

// Key names an agent of a chain's IdentityRegistry: the known one, or that of IDENTITY_REGISTRY_<chainId>.
type Key struct {
	ChainID uint64
	AgentID string // decimal
}

func (k Key) String() string { return fmt.Sprintf("%d:%s", k.ChainID, k.AgentID) }

// Server is what the file says about one agent.
type Server struct {
	Enabled   bool          // false: its deliveries are held, also those whose job names an endpoint
	Tools     []string      // only these are called; nil: all
	Timeout   time.Duration // a call takes at most so long; 0: the file does not say
	OnUnknown string        // store.OnUnknownResend or OnUnknownHold; "": the agent's own policy
	// Display is the endpoint as logs, pages and the database may show it: as it is written in the file, without a
	// query; "" without one.
	Display string

	// With what came out of the environment, so nothing prints it; never changed.
	endpoint *mcpcall.Endpoint
}

// Format prints the endpoint as it may be shown, whatever the verb.
func (s Server) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "server "+s.Display) }

// Endpoint is where the agent is called, false when the file leaves that to the chain. It is shared: whoever changes
// something in it clones that before.
func (s Server) Endpoint() (mcpcall.Endpoint, bool) {
	if s.endpoint == nil {
		return mcpcall.Endpoint{}, false
	}
	return *s.endpoint, true
}

// Allows tells which of a tool's names may be called: all when it may be called by the first, else those that the file
// names; none when it may not be called at all.
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

// listDifferences lists the fields, as the file calls them, in which two servers differ.
func (s Server) listDifferences(o Server) (fields []string) {
	a, b := mcpcall.Endpoint{}, mcpcall.Endpoint{}
	if s.endpoint != nil {
		a = *s.endpoint
	}
	if o.endpoint != nil {
		b = *o.endpoint
	}
	for _, f := range []struct {
		name string
		same bool
	}{
		{"transport", a.Transport == b.Transport},
		{"url", a.URL == b.URL},
		{"headers", maps.EqualFunc(a.Headers, b.Headers,
			func(x, y secret.Secret) bool { return x.Compare(y.Reveal()) })},
		{"command", a.Command == b.Command},
		{"args", slices.Equal(a.Args, b.Args)},
		{"env", slices.Equal(a.Env, b.Env)},
		{"workingDir", a.Dir == b.Dir},
		{"enabled", s.Enabled == o.Enabled},
		{"tools", slices.Equal(s.Tools, o.Tools)},
		{"timeoutMs", s.Timeout == o.Timeout},
		{"onUnknown", s.OnUnknown == o.OnUnknown},
	} {
		if !f.same || f.name == s.findRespelt(o) {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// findRespelt names the field that is written in another way now and means the same, as a secret behind ${NAME}; ""
// when there is none.
func (s Server) findRespelt(o Server) string {
	switch {
	case s.Display == o.Display || s.endpoint == nil || o.endpoint == nil || s.endpoint.URL != o.endpoint.URL ||
		s.endpoint.Command != o.endpoint.Command:
		return ""
	case s.endpoint.URL != "":
		return "url"
	}
	return "command"
}

// hasMoved tells whether a client that was made for s must not serve o.
func (s Server) hasMoved(o Server) bool {
	respelt := s.findRespelt(o)
	return slices.ContainsFunc(s.listDifferences(o), func(field string) bool {
		return field != respelt && slices.Contains([]string{"transport", "url", "headers", "command", "args", "env",
			"workingDir"}, field)
	})
}

// Diff is what a new file changes, by key and in order.
type Diff struct{ Added, Removed, Changed []Change }

// Change is one server before and after; the side that there is not is empty.
type Change struct {
	Key      Key
	Old, New Server
	Fields   []string // Changed: as the file calls them; headers stands for auth too
}

func (c Change) String() string {
	if len(c.Fields) == 0 {
		return c.Key.String()
	}
	return c.Key.String() + " (" + strings.Join(c.Fields, ", ") + ")"
}

// Empty tells whether nothing changed.
func (d Diff) Empty() bool { return len(d.Added)+len(d.Removed)+len(d.Changed) == 0 }

// ListDroppedEndpoints lists the endpoints that nobody is called at any more because of the change: their clients can
// go.
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

// ListMovedAgents lists the agents that are called at another endpoint of the file's than before, or with other
// credentials: what was held for want of them may be tried again.
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

// compareFiles finds what changed between two files.
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

// sortKeys lists the keys in the order of their numbers.
func sortKeys(m map[Key]Server) []Key {
	return slices.SortedFunc(maps.Keys(m), func(a, b Key) int {
		if a.ChainID != b.ChainID {
			if a.ChainID < b.ChainID {
				return -1
			}
			return 1
		}
		if len(a.AgentID) != len(b.AgentID) {
			return len(a.AgentID) - len(b.AgentID)
		}
		return strings.Compare(a.AgentID, b.AgentID)
	})
}
