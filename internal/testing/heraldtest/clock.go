package heraldtest

import (
	"sync"
	"time"
	"unsafe"
)

// Clock is a clock that changes only with Advance. Its method Now fits the field Now of a Config.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that shows a time.
func NewClock(now time.Time) *Clock { return &Clock{now: now} }

// Now returns the time that the clock shows.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock forward by d.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// ResumeAt returns the time now for a machine that was suspended for d since: its wall clock shows d more, and its
// monotonic clock the same time.
func ResumeAt(now time.Time, d time.Duration) time.Time {
	const secondsBit = 30 // the seconds of the wall clock begin here in the first word of a time.Time
	*(*uint64)(unsafe.Pointer(&now)) += uint64(d/time.Second) << secondsBit
	return now
}
