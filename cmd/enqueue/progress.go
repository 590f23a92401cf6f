package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/progress"
)

// inputBar draws how much of the input has been read. A short input shows no bar.
type inputBar struct {
	*progress.Bar
	size  int64        // bytes of input; 0 if unknown
	bytes atomic.Int64 // how far the input has been read
}

func newInputBar(w io.Writer, size int64) *inputBar {
	return &inputBar{Bar: progress.New(w, time.Second), size: size}
}

func (b *inputBar) showTally(t tally) {
	share, percent := -1.0, ""
	if b.size > 0 {
		share = min(float64(b.bytes.Load())/float64(b.size), 1)
		percent = fmt.Sprintf("%3.0f %%  ", 100*share)
	}
	b.Draw(share, func(seconds float64) string {
		lines := t.countAll()
		return fmt.Sprintf("%s%d lines, %.0f/s, %d refused", percent, lines, float64(lines)/seconds, t.countFailed())
	})
}
