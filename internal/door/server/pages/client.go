package pages

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store"
)

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
	Last                         store.Delivery
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
	byAgent := map[store.Agent]int{}
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

func (w *written) addStatus(s store.Status) {
	w.Count++
	switch {
	case s == store.Delivered:
		w.Delivered++
	case s.Final():
		w.Lost++
	default:
		w.Open++
	}
}
