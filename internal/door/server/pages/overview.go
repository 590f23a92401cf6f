package pages

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
)

// overviewPage is the overview.
type overviewPage struct {
	operator.Overview
	Sentence  string // how things are
	Periods   []outcomes
	Chart     *chart
	PerMinute float64 // delivered in a minute, averaged over the last five minutes
}

// outcomes sums up the outcomes of attempts of a period: good, put off, bad.
type outcomes struct {
	Span   string
	Counts [3]int64
}

func (p *Pages) showOverview(r *request) (answer, error) {
	v, err := p.Operator.ShowOverview(r.Context())
	if err != nil {
		return answer{}, err
	}
	page := overviewPage{Overview: v, Chart: chartOutcomes(v, r.URL.Query().Get("span")),
		Periods: []outcomes{{"last hour", sumMinutes(v.Minutes)}, {"last day", sumMinutes(lastOf(v.Hours, 24))},
			{"last week", sumMinutes(v.Hours)}}}
	page.Sentence = describeState(v, page.Periods[0].Counts[0], len(page.Needs)+len(v.Problems))
	const recent = 5 // whole minutes, in addition to the current one
	if n := len(v.Minutes); n > recent {
		var delivered int64
		for _, m := range v.Minutes[n-1-recent:] {
			delivered += m.Outcomes[outcome.Delivered]
		}
		page.PerMinute = float64(delivered) / v.At.Sub(v.Minutes[n-1-recent].At).Minutes()
	}
	return answer{page: "overview", title: "Overview", content: page}, nil
}

// describeState describes the state of Herald in one sentence. delivered is the number of successes in the last hour,
// and needs that of matters that need attention. Without v.Minutes, the outcomes of the last hour are unknown. Failures
// are counted as in v.Needs: also deliveries that were rejected at acceptance, or expired, without a failed attempt.
func describeState(v operator.Overview, delivered int64, needs int) string {
	failed := v.EndedLastHour[outcome.Rejected] + v.EndedLastHour[outcome.Dead]
	parts := []string{
		fmt.Sprintf("%s delivered and %s failed in the last hour", showCount(delivered), showCount(failed))}
	switch {
	case len(v.Minutes) == 0:
		parts[0] = "the outcomes of the last hour are unknown"
	case delivered+failed == 0:
		parts[0] = "nothing was delivered and nothing failed in the last hour"
	}
	if n := v.LastHour.Outcomes[outcome.Skipped]; n > 0 {
		parts = append(parts, showCount(n)+" skipped")
	}
	for _, status := range []outcome.Status{outcome.Queued, outcome.Waiting, outcome.Held} {
		if n := v.Open[status]; n > 0 {
			parts = append(parts, showCount(n)+" "+string(status))
		}
	}
	begin := "All is well: "
	switch {
	case needs == 1:
		begin = "One matter needs attention: "
	case needs > 1:
		begin = fmt.Sprintf("%d matters need attention: ", needs)
	}
	return begin + strings.Join(parts, ", ") + "."
}

// Lag describes how far the reading of a chain is behind its head.
func (overviewPage) Lag(c operator.ChainProgress) string {
	if c.HeadBlock == 0 {
		return "–"
	}
	lag := countWords(c.LagBlocks, "block", "blocks")
	if known, _ := erc8004.FindChain(c.ChainID); known.BlockTime > 0 && c.LagBlocks > 0 {
		lag += ", about " + showSeconds((time.Duration(c.LagBlocks) * known.BlockTime).Seconds())
	}
	return lag
}

// needURL returns the address of the list that shows a need. It is empty if only the need's command shows it.
func needURL(n operator.Need) string {
	switch {
	case n.About == "deliveries":
		return "/deliveries?" + encodePairs([]string{
			"status", n.Status, "reason", n.Reason, "ended_since", n.EndedSince})
	case n.AgentState != "":
		return "/agents?" + encodePairs([]string{"state", n.AgentState})
	case n.About == "agents": // open breakers
		return "/agents?sort=failing"
	}
	return ""
}
