package pages

import (
	"sort"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store"
)

// overviewPage is the overview.
type overviewPage struct {
	operator.Overview
	Needs     []need
	Good      int64   // delivered or skipped in the last hour
	PerMinute float64 // delivered in a minute, averaged over the last five minutes
}

// need is a problem that a person must handle.
type need struct {
	Count int64
	What  string
	URL   string
}

func (p *Pages) showOverview(r *request) (answer, error) {
	v, err := p.Operator.ShowOverview(r.Context())
	if err != nil {
		return answer{}, err
	}
	page := overviewPage{Overview: v, Needs: listNeeds(v),
		Good: v.LastHour.Outcomes[store.Delivered] + v.LastHour.Outcomes[store.Skipped]}
	const recent = 5 // whole minutes, in addition to the current one
	if n := len(v.Minutes); n > recent {
		var delivered int64
		for _, m := range v.Minutes[n-1-recent:] {
			delivered += m.Outcomes[store.Delivered]
		}
		page.PerMinute = float64(delivered) / v.At.Sub(v.Minutes[n-1-recent].At).Minutes()
	}
	return answer{page: "overview", title: "Overview", content: page}, nil
}

// listNeeds lists problems that do not resolve by themselves.
func listNeeds(v operator.Overview) (needs []need) {
	add := func(count int64, what, url string) {
		if count > 0 {
			needs = append(needs, need{count, what, url})
		}
	}
	for _, s := range v.Stuck {
		if s.Status == store.Held {
			add(s.Count, "held: "+s.Reason, "/deliveries?"+encodePairs([]string{"status", "held", "reason", s.Reason}))
			continue
		}
		add(s.Count, "overdue, "+string(s.Status)+" "+s.Reason, "/deliveries?"+encodePairs([]string{"status", string(s.Status), "reason", s.Reason}))
	}
	add(v.LastHour.Outcomes[store.Dead], "died in the last hour", "/deliveries?status=dead")
	add(v.LastHour.Outcomes[store.Rejected], "rejected in the last hour", "/deliveries?status=rejected")
	add(v.Agents[store.StateNeedsAuth], "agents want a credential", "/agents?state=needs_auth")
	add(v.Agents[store.StateFailed], "agents failed last", "/agents?state=failed")
	add(v.TokensExpired, "stored tokens have expired: worker token list", "")
	add(v.TokensSoon, "stored tokens expire within 7 days: worker token list", "")
	sort.SliceStable(needs, func(i, j int) bool { return needs[i].Count > needs[j].Count })
	return needs
}
