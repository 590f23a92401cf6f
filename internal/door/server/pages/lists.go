package pages

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/operator"
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
	Rows    []auditRow
	NextURL string
}

// auditRow is an audit row with its filter in words.
type auditRow struct {
	records.Audit
	What string
}

func (p *Pages) listAudit(r *request) (answer, error) {
	cursor, _ := strconv.ParseInt(r.URL.Query().Get("cursor"), 10, 64)
	list, err := p.Operator.ListAudit(r.Context(), max(cursor, 0), pageRows)
	page := auditPage{}
	for _, a := range list.Audit {
		page.Rows = append(page.Rows, auditRow{a, describeFilter(a.Filter)})
	}
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
