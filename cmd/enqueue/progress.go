package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

const (
	progressAfter = time.Second // a short input shows no bar
	progressEvery = 200 * time.Millisecond
	barWidth      = 30
)

// progress draws a progress bar if w is a terminal. Otherwise it does nothing.
type progress struct {
	w       io.Writer // nil if it is not a terminal
	size    int64     // bytes of input; 0 if unknown
	now     func() time.Time
	began   time.Time
	drawn   time.Time
	bytes   atomic.Int64
	visible bool
}

func newProgress(w io.Writer, size int64) *progress {
	p := &progress{size: size, now: time.Now, began: time.Now()}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.w = f
	}
	return p
}

// noteOffset stores how far the input has been read. It may run concurrently with showTally.
func (p *progress) noteOffset(offset int64) { p.bytes.Store(offset) }

func (p *progress) showTally(t tally) {
	now := p.now()
	if p.w == nil || now.Sub(p.began) < progressAfter || now.Sub(p.drawn) < progressEvery {
		return
	}
	p.drawn, p.visible = now, true
	lines := t.accepted + t.known + t.refreshed + t.conflicts + t.refused
	rate := float64(lines) / now.Sub(p.began).Seconds()
	if p.size <= 0 {
		fmt.Fprintf(p.w, "\r\x1b[K%d lines, %.0f/s, %d refused", lines, rate, t.refused+t.conflicts)
		return
	}
	share := min(float64(p.bytes.Load())/float64(p.size), 1)
	full := int(share * barWidth)
	fmt.Fprintf(p.w, "\r\x1b[K[%s%s] %3.0f %%  %d lines, %.0f/s, %d refused", strings.Repeat("=", full),
		strings.Repeat(" ", barWidth-full), 100*share, lines, rate, t.refused+t.conflicts)
}

// end removes the bar.
func (p *progress) end() {
	if p.visible {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.visible = false
	}
}
