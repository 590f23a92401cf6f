package trial

import (
	"fmt"
	"strings"
	"time"
)

// Figures is one line of results of a trial: "chaos: kill -9: deliveries=5000 lost=0 …". The names keep the order in
// which they were added, so that two runs can be compared line by line.
type Figures struct {
	title string
	parts []string
}

// NewFigures begins a line.
func NewFigures(kind, what string) *Figures { return &Figures{title: kind + ": " + what + ":"} }

// Add appends name=value. Durations are formatted in seconds or milliseconds with their unit, fractions with two
// digits.
func (f *Figures) Add(name string, value any) *Figures {
	text := fmt.Sprint(value)
	switch v := value.(type) {
	case time.Duration:
		switch {
		case v >= 10*time.Second:
			text = fmt.Sprintf("%.1fs", v.Seconds())
		default:
			text = fmt.Sprintf("%.1fms", float64(v)/float64(time.Millisecond))
		}
	case float64:
		text = fmt.Sprintf("%.2f", v)
	}
	f.parts = append(f.parts, name+"="+text)
	return f
}

func (f *Figures) String() string { return f.title + " " + strings.Join(f.parts, " ") }
