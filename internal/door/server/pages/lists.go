package pages

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// chainsPage shows the chains that are followed.
type chainsPage struct{ Chains []operator.ChainState }

func (p *Pages) listChains(r *request) (answer, error) {
	all, err := p.Operator.ReadChains(r.Context())
	return answer{page: "chains", title: "Chains", content: chainsPage{all}}, err
}

// auditPage is one page of audit rows.
type auditPage struct {
	Rows    []records.Audit
	NextURL string
}

// describeChange describes how many of the selected rows an action changed. An action on one agent or token counts the
// deliveries that it released, and a change of the keys has no selection.
func describeChange(a records.Audit) string {
	switch a.Action {
	case "agent disable": // it moves no delivery
		return "–"
	case "agent enable", "token set", "token login":
		return showCount(a.Moved) + " released"
	case "keys reencrypt":
		return showCount(a.Moved)
	}
	return showCount(a.Moved) + " of " + showCount(a.Matched)
}

func (p *Pages) listAudit(r *request) (answer, error) {
	cursor, _ := strconv.ParseInt(r.URL.Query().Get("cursor"), 10, 64)
	list, err := p.Operator.ListAudit(r.Context(), max(cursor, 0), pageRows)
	page := auditPage{Rows: list.Audit}
	if list.Next != "" {
		page.NextURL = "/audit?cursor=" + list.Next
	}
	return answer{page: "audit", title: "Audit", content: page}, err
}

// describeFilter returns an audit row's filter in words, as in "agent 8453:42, status dead".
func describeFilter(raw json.RawMessage) string {
	var fields map[string]any
	if json.Unmarshal(raw, &fields) != nil {
		return string(raw)
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch v := fields[name].(type) {
		case string, bool, float64:
			parts = append(parts, fmt.Sprintf("%s %v", name, v))
		default:
			text, _ := json.Marshal(v) // cannot fail: it was decoded from JSON
			parts = append(parts, name+" "+string(text))
		}
	}
	return strings.Join(parts, ", ")
}

// clientPage shows the deliveries about one address, by agent.
type clientPage struct {
	Address string
	Chains  []uint64
	Shown   int // deliveries that the page sums up: the newest
	All     bool
	Agents  []written // those with the most deliveries
	Latest  deliveryTable
}

// written sums up the deliveries of a client to one agent.
type written struct {
	Last                         ledger.Delivery
	Count, Delivered, Open, Lost int
}

// clientRows bounds the deliveries that a client's page sums up.
const clientRows = 500

func (p *Pages) showClient(r *request) (answer, error) {
	address := strings.ToLower(r.PathValue("address"))
	list, err := p.Operator.ListDeliveries(r.Context(), operator.Selection{Client: address}, 0, clientRows)
	if err != nil {
		return answer{}, err
	}
	page := clientPage{Address: address, Shown: len(list.Deliveries), All: list.Next == ""}
	byAgent := map[erc8004.Agent]int{}
	for _, d := range list.Deliveries {
		i, known := byAgent[agentOf(d)]
		if !known {
			i = len(page.Agents)
			byAgent[agentOf(d)] = i
			page.Agents = append(page.Agents, written{Last: d})
		}
		page.Agents[i].addStatus(d.Status)
		if !slices.Contains(page.Chains, d.ChainID) {
			page.Chains = append(page.Chains, d.ChainID)
		}
	}
	slices.SortStableFunc(page.Agents, func(a, b written) int { return cmp.Compare(b.Count, a.Count) })
	page.Agents = page.Agents[:min(pageRows, len(page.Agents))]
	if page.Latest, err = p.makeTable(r.Context(), list.Deliveries); err != nil {
		return answer{}, err
	}
	page.Latest.Rows = page.Latest.Rows[:min(pageRows, page.Shown)]
	return answer{page: "client", title: "Client " + shortenHex(address), content: page}, nil
}

func (w *written) addStatus(s outcome.Status) {
	w.Count++
	switch {
	case s == outcome.Delivered:
		w.Delivered++
	case s.Final():
		w.Lost++
	default:
		w.Open++
	}
}
