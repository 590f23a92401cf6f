package pages

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery/throughput"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// chart is a bar chart of counts over time. The template "chart" draws it, with its values as a table.
type chart struct {
	Title   string
	Spans   []string     // the spans of time that a visitor can choose
	Span    string       // the chosen one
	Query   template.URL // of the page, for the links to the spans; may be empty
	Names   [3]string    // of the parts of a bar, from below: good, wait, bad; an empty one is not shown
	Columns []column
	Most    int64    // the highest bar
	Slowest *float64 // ms, the highest P95Ms; nil: no column has one
}

// column is the bar of a period, and how long its calls took. Positions are percentages of the chart.
type column struct {
	At           time.Time
	When         string // the period
	Counts       [3]int64
	P50Ms, P95Ms *float64
	Text         string // all values in words
	X, Width     string
	Bars         []bar
	P50Y, P95Y   string
}

// bar is one part of a column.
type bar struct{ Class, Y, Height string }

func formatPercent(part, whole float64) string { return fmt.Sprintf("%.2f%%", 100*part/whole) }

// layOut sets the positions and the texts of the chart's columns.
func (c *chart) layOut() *chart {
	c.Most = 1
	for _, col := range c.Columns {
		c.Most = max(c.Most, col.Counts[0]+col.Counts[1]+col.Counts[2])
		if col.P95Ms != nil && (c.Slowest == nil || *col.P95Ms > *c.Slowest) {
			c.Slowest = col.P95Ms
		}
	}
	for i := range c.Columns {
		col, n, below := &c.Columns[i], float64(len(c.Columns)), int64(0)
		col.X, col.Width = formatPercent(float64(i)+.1, n), formatPercent(.8, n)
		var words []string
		for k, class := range []string{"good", "wait", "bad"} {
			if c.Names[k] == "" {
				continue
			}
			words = append(words, fmt.Sprintf("%s %s", showCount(col.Counts[k]), c.Names[k]))
			if below += col.Counts[k]; col.Counts[k] > 0 {
				most := float64(c.Most)
				col.Bars = append(col.Bars, bar{class, formatPercent(most-float64(below), most),
					formatPercent(float64(col.Counts[k]), most)})
			}
		}
		if col.P95Ms != nil && *c.Slowest > 0 {
			words = append(words, "p50 "+showMillis(col.P50Ms), "p95 "+showMillis(col.P95Ms))
			col.P50Y = formatPercent(*c.Slowest-*col.P50Ms, *c.Slowest)
			col.P95Y = formatPercent(*c.Slowest-*col.P95Ms, *c.Slowest)
		}
		col.Text = strings.Join(words, ", ")
	}
	return c
}

// First, Middle and Last are the labels of the chart's axis.
func (c *chart) First() string  { return c.Columns[0].When }
func (c *chart) Middle() string { return c.Columns[len(c.Columns)/2].When }
func (c *chart) Last() string   { return c.Columns[len(c.Columns)-1].When }

// chooseSpan returns span if it is one of spans, otherwise the first.
func chooseSpan(span string, spans []string) string {
	if slices.Contains(spans, span) {
		return span
	}
	return spans[0]
}

// sumMinutes adds up outcomes: delivered, put off or held, rejected or dead. It ignores skipped deliveries.
func sumMinutes(list []throughput.Minute) (sums [3]int64) {
	for _, m := range list {
		sums[0] += m.Outcomes[outcome.Delivered]
		sums[1] += m.Outcomes[outcome.Waiting] + m.Outcomes[outcome.Held]
		sums[2] += m.Outcomes[outcome.Rejected] + m.Outcomes[outcome.Dead]
	}
	return sums
}

// chartOutcomes draws the last hour (by two minutes), day (by hour) or week (by six hours) of all workers.
func chartOutcomes(v operator.Overview, span string) *chart {
	c := &chart{Title: "Outcomes of the last", Spans: []string{"hour", "day", "week"},
		Names: [3]string{"delivered", "put off", "failed"}}
	c.Span = chooseSpan(span, c.Spans)
	list, per, layout := v.Minutes, 2, "15:04"
	switch c.Span {
	case "day":
		list, per, layout = lastOf(v.Hours, 24), 1, "2 Jan 15:04"
	case "week":
		list, per, layout = v.Hours, 6, "2 Jan 15:04"
	}
	for ; len(list) > 0; list = list[min(per, len(list)):] {
		at := list[0].At.UTC()
		c.Columns = append(c.Columns,
			column{At: at, When: at.Format(layout), Counts: sumMinutes(list[:min(per, len(list))])})
	}
	return c.layOut()
}

// lastOf returns the last n elements of list.
func lastOf(list []throughput.Minute, n int) []throughput.Minute { return list[max(0, len(list)-n):] }

// chartCalls draws an agent's calls of the last day (by hour), week (by six hours) or month (by day).
func chartCalls(hours []records.AgentHour, span string, now time.Time) *chart {
	c := &chart{Title: "Calls of the last", Spans: []string{"day", "week", "month"},
		Names: [3]string{"succeeded", "", "failed"}}
	c.Span = chooseSpan(span, c.Spans)
	count, per, layout := 24, time.Hour, "2 Jan 15:04"
	switch c.Span {
	case "week":
		count, per = 28, 6*time.Hour
	case "month":
		count, per, layout = 30, 24*time.Hour, "2 Jan"
	}
	first := now.UTC().Truncate(per).Add(-time.Duration(count-1) * per)
	for i := range count {
		at := first.Add(time.Duration(i) * per)
		for len(hours) > 0 && hours[0].Hour.Before(at) {
			hours = hours[1:]
		}
		n := 0
		for n < len(hours) && hours[n].Hour.Before(at.Add(per)) {
			n++
		}
		sum := records.SummarizeHours(hours[:n], at)
		c.Columns = append(c.Columns, column{At: at, When: at.Format(layout), P50Ms: sum.P50Ms, P95Ms: sum.P95Ms,
			Counts: [3]int64{int64(sum.Calls - sum.Failed), 0, int64(sum.Failed)}})
	}
	return c.layOut()
}
