// Package progress draws how far a command is, in one line of a terminal. It draws nothing elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

const (
	drawEvery = 200 * time.Millisecond
	barWidth  = 30
)

// Bar is the line. It is not safe for concurrent use.
type Bar struct {
	w            io.Writer // nil if it is not a terminal
	began, drawn time.Time
	visible      bool
}

// New returns a bar. It draws on w if that is a terminal, but not before the time after has passed.
func New(w io.Writer, after time.Duration) *Bar {
	b := &Bar{began: time.Now()}
	b.drawn = b.began.Add(after - drawEvery)
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		b.w = f
	}
	return b
}

// Draw draws the bar, unless it was drawn just before. share is the part that is done, from 0 to 1; below 0, only the
// text is drawn. text gets the seconds since New.
func (b *Bar) Draw(share float64, text func(seconds float64) string) {
	now := time.Now()
	if b.w == nil || now.Sub(b.drawn) < drawEvery {
		return
	}
	b.drawn, b.visible = now, true
	line := text(max(now.Sub(b.began).Seconds(), 0.001))
	if full := min(int(share*barWidth), barWidth); share >= 0 {
		line = "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "] " + line
	}
	fmt.Fprint(b.w, "\r\x1b[K"+line)
}

// Clear removes the bar, so that a line can be printed.
func (b *Bar) Clear() {
	if b.visible {
		fmt.Fprint(b.w, "\r\x1b[K")
		b.visible = false
	}
}
