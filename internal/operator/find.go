package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Match is what Find found.
type Match struct {
	Kind     string `json:"kind"`               // delivery, transaction, client or agent
	Target   string `json:"target"`             // its id, hash, address or CHAIN:AGENT
	Registry string `json:"registry,omitempty"` // of an agent
	Text     string `json:"text"`               // what it is
	Command  string `json:"command"`            // the command that shows it
}

// MatchList has the matches of Find.
type MatchList struct {
	Matches []Match `json:"matches"`
}

// maxMatches bounds the deliveries with a short id, and the agents with a name, that Find returns.
const maxMatches = 20

// Find looks up a delivery's id, its first 8 or more digits or its key, a transaction's hash, a client's address, an
// agent as CHAIN:AGENT, or the beginning of an agent's name. It returns a *NotFoundError if nothing is known.
func (o *Operator) Find(ctx context.Context, what string) (found MatchList, err error) {
	what = strings.TrimSpace(what)
	if err := checkText("text", what); err != nil || what == "" {
		return found, cmp.Or(err, error(NewMisuse("name what to find")))
	}
	found.Matches = []Match{}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error { return found.searchAll(ctx, st, what) })
	if err == nil && len(found.Matches) == 0 {
		err = &NotFoundError{fmt.Sprintf("nothing is known of %.80q: it is no id or key of a delivery, "+
			"no transaction or client of one, and no agent's CHAIN:AGENT or beginning of its name", what)}
	}
	return found, err
}

func (l *MatchList) searchAll(ctx context.Context, st *Session, what string) error {
	if strings.HasPrefix(what, "eip155:") || strings.HasPrefix(what, "invalid:") {
		return l.addDelivery(st.DeliveryByKey(ctx, what))
	}
	if hash, err := parseHex("text", what, 32); err == nil {
		return l.addNewest(ctx, st, Match{Kind: "transaction", Target: hash}, records.Filter{Transaction: hash})
	}
	if address, err := parseHex("text", what, 20); err == nil {
		return l.addNewest(ctx, st, Match{Kind: "client", Target: address}, records.Filter{Client: address})
	}
	if g, ok := erc8004.ParseAgent(what); ok {
		rows, err := st.Agents(ctx, records.AgentFilter{ChainID: &g.ChainID, AgentID: g.ID, Limit: maxMatches})
		l.addAgents(rows)
		return err
	}
	if first, last, ok := records.ParseShortID(what); ok {
		rows, err := st.Deliveries(ctx, records.Filter{FirstID: first, LastID: last, Limit: maxMatches})
		for _, d := range rows {
			err = cmp.Or(err, l.addDelivery(d, nil))
		}
		if err != nil || first == last {
			return err
		}
	}
	rows, err := st.AgentsNamed(ctx, what, maxMatches)
	l.addAgents(rows)
	return err
}

// addDelivery adds a delivery. It ignores ErrNotFound, and returns other errors of the look-up.
func (l *MatchList) addDelivery(d ledger.Delivery, err error) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err == nil {
		l.Matches = append(l.Matches, Match{Kind: "delivery", Target: d.ID.String(), Text: describeMatch(d),
			Command: "worker delivery show " + d.ID.String()})
	}
	return err
}

func describeMatch(d ledger.Delivery) string {
	return fmt.Sprintf("%s for agent %s, %s", d.Kind, erc8004.FormatAgent(d.ChainID, d.AgentID), describeState(d))
}

// addNewest adds m if the filter selects a delivery. Its text describes the newest one.
func (l *MatchList) addNewest(ctx context.Context, st *Session, m Match, f records.Filter) error {
	f.Limit = 1
	rows, err := st.Deliveries(ctx, f)
	if err != nil || len(rows) == 0 {
		return err
	}
	d := rows[0]
	m.Command = "worker delivery list --wide --" + m.Kind + " " + m.Target
	m.Text = fmt.Sprintf("its newest delivery is %s, accepted at %s", describeMatch(d),
		d.CreatedAt.UTC().Format(time.RFC3339))
	l.Matches = append(l.Matches, m)
	return nil
}

func (l *MatchList) addAgents(rows []records.AgentRow) {
	for _, r := range rows {
		name := erc8004.FormatAgent(r.ChainID, r.AgentID)
		l.Matches = append(l.Matches, Match{Kind: "agent", Target: name, Registry: r.IdentityRegistry,
			Text:    strings.TrimSpace(text.Shorten(r.Name()) + " " + r.State),
			Command: fmt.Sprintf("worker agent show %s --registry %s", name, r.IdentityRegistry)})
	}
}
