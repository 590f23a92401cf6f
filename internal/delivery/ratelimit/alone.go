package ratelimit

import (
	"context"
	"time"
)

const (
	// lookForOthers is how often a worker looks whether it is the only one: for so long two may each give an origin what
	// both together may.
	lookForOthers = time.Second
	// aloneAfter is how long a worker shares its limits after Redis was away or had forgotten it: longer than the others
	// take to say again that they are there (asynq's servers do every 5 s).
	aloneAfter = 6 * time.Second
)

// watchOthers lets a worker that is the only one count in this process, as it does while Redis is away: what is counted
// in Redis is for the others. This process' own counts always go along, so that nothing changes when it becomes alone;
// when it no longer is, the calls that it began alone are missing in Redis until they end.
func (l *Limiter) watchOthers(look func(context.Context) (others int, self bool, err error)) {
	defer l.tasks.Done()
	ticker := time.NewTicker(l.lookForOthers)
	defer ticker.Stop()
	known := false // Redis has listed this worker before
	var until time.Time
	for {
		select {
		case <-ticker.C:
		case <-l.life.Done():
			return
		}
		ctx, cancel := context.WithTimeout(l.life, max(l.lookForOthers, l.timeout))
		others, self, err := look(ctx)
		cancel()
		now := time.Now()
		if known && (err != nil || !self) { // it may have forgotten the others too
			until = now.Add(l.aloneAfter)
		}
		known = known || self
		l.mu.Lock()
		l.alone = err == nil && self && others == 0 && !now.Before(until)
		l.mu.Unlock()
	}
}
