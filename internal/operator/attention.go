package operator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// Need is a state that needs a person, because it does not end by itself.
type Need struct {
	About   string `json:"about"` // workers, chains, deliveries, agents or tokens
	Count   int64  `json:"count"`
	Text    string `json:"text"`              // "3 deliveries are held: auth_required"
	Command string `json:"command,omitempty"` // the command that shows them

	// The filters of the list that shows them: of deliveries or, if AgentState is set, of agents.
	Status     string `json:"status,omitempty"`
	Reason     string `json:"reason,omitempty"`
	EndedSince string `json:"endedSince,omitempty"`
	AgentState string `json:"agentState,omitempty"`
}

// NeedsAttention lists the needs of an overview: no running worker, chains that cannot be read, held and overdue
// deliveries, failures of the last hour, agents, breakers and tokens. Needs about the same thing are sorted by Count,
// the highest first.
func (v Overview) NeedsAttention() []Need {
	needs := []Need{}
	add := func(n Need) {
		if n.About == "deliveries" {
			n.Command = n.listCommand()
		}
		if n.Count > 0 {
			needs = append(needs, n)
		}
	}
	if v.Workers == 0 {
		open := int64(0)
		for _, n := range v.Open {
			open += n
		}
		add(Need{About: "workers", Count: open, Command: "worker",
			Text: "no worker is running, and " + countDeliveries(open) + " open"})
	}
	newest := map[uint64]ChainProgress{} // of the contracts of a chain: others may be no longer read
	for _, c := range v.Chains {
		if c.MovedAt.After(newest[c.ChainID].MovedAt) {
			newest[c.ChainID] = c
		}
	}
	for id, c := range newest {
		if c.StalledSince != nil {
			add(Need{About: "chains", Count: 1, Command: fmt.Sprintf("worker chain show %d", id),
				Text: fmt.Sprintf("chain %d is not read since %s", id, c.StalledSince.UTC().Format(time.DateTime))})
		}
	}
	for _, s := range v.Stuck {
		words := countDeliveries(s.Count) + " held: " + s.Reason
		if s.Status != outcome.Held {
			words = countDeliveries(s.Count) + " overdue for more than a minute, and no worker takes " +
				text.Plural(s.Count, "it: ", "them: ") + strings.TrimSpace(string(s.Status)+" "+s.Reason)
		}
		add(Need{About: "deliveries", Count: s.Count, Status: string(s.Status), Reason: s.Reason, Text: words})
	}
	for status, words := range map[outcome.Status]string{outcome.Rejected: "rejected",
		outcome.Dead: "given up (dead)"} {
		n := v.EndedLastHour[status]
		add(Need{About: "deliveries", Count: n, Status: string(status), EndedSince: "1h",
			Text: text.Count(n, "delivery was", "deliveries were") + " " + words + " in the last hour"})
	}
	for state, words := range map[string]string{records.StateFailed: "failed in the latest call",
		records.StateNeedsAuth: "without the credential that is required"} {
		add(Need{About: "agents", Count: v.Agents[state], AgentState: state,
			Command: "worker agent list --state " + state,
			Text:    text.Count(v.Agents[state], "agent", "agents") + " " + words})
	}
	add(Need{About: "agents", Count: int64(v.OpenBreakers), Command: "worker agent list --sort failing",
		Text: text.Count(int64(v.OpenBreakers), "circuit breaker is", "circuit breakers are") +
			" open: Herald pauses the calls to an endpoint that fails"})
	for words, n := range map[string]int64{"expired": v.TokensExpired, "expiring within 7 days": v.TokensSoon} {
		add(Need{About: "tokens", Count: n, Command: "worker token list",
			Text: text.Count(n, "stored token is", "stored tokens are") + " " + words})
	}
	order := []string{"workers", "chains", "deliveries", "agents", "tokens"}
	slices.SortStableFunc(needs, func(a, b Need) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.About), slices.Index(order, b.About)),
			cmp.Compare(b.Count, a.Count), cmp.Compare(a.Text, b.Text))
	})
	return needs
}

func countDeliveries(n int64) string { return text.Count(n, "delivery is", "deliveries are") }

// listCommand returns the command that lists the deliveries of a need.
func (n Need) listCommand() string {
	list := "worker delivery list --wide --status " + n.Status
	if n.Reason != "" {
		list += " --reason " + n.Reason
	}
	if n.EndedSince != "" {
		list += " --ended-since " + n.EndedSince
	}
	return list
}
