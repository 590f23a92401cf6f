package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

const (
	progressEvery = 200 * time.Millisecond
	barWidth      = 30
)

// progress draws a progress bar if w is a terminal. Otherwise it does nothing.
type progress struct {
	w       io.Writer // nil if it is not a terminal
	now     func() time.Time
	began   time.Time
	drawn   time.Time
	visible bool
}

func newProgress(w io.Writer) *progress {
	p := &progress{now: time.Now, began: time.Now()}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.w = f
	}
	return p
}

func (p *progress) showProgress(done, total, left int) {
	now := p.now()
	if p.w == nil || now.Sub(p.drawn) < progressEvery {
		return
	}
	p.drawn, p.visible = now, true
	full := min(barWidth*done/max(total, 1), barWidth)
	rate := float64(done) / max(now.Sub(p.began).Seconds(), 0.001)
	fmt.Fprintf(p.w, "\r\x1b[K[%s%s] %d of %d, %.0f/s, %d left as they are", strings.Repeat("=", full),
		strings.Repeat(" ", barWidth-full), done, total, rate, left)
}

// clear removes the bar, so that a line can be printed.
func (p *progress) clear() {
	if p.visible {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.visible = false
	}
}
