package ratelimit

import (
	"context"
	"time"
)

const (
	// lookForOthers is the time between two checks whether there are other workers. Until the check, a new worker and
	// this one may each use the whole limit of an origin.
	lookForOthers = time.Second
	// aloneAfter is how long a worker shares its limits after Redis failed or lost its list of workers. It is longer
	// than other workers need to be listed again (asynq's servers renew their entry every 5 s).
	aloneAfter = 6 * time.Second
)

// watchOthers sets l.alone while this worker is the only one. Then it counts in this process, as during an outage,
// because only other workers need the counts in Redis. The process' own counts are always maintained, so becoming alone
// changes nothing. When another worker appears, Redis does not know the calls that this worker began alone, until they
// end.
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
		if known && (err != nil || !self) { // Redis may have lost the others' entries too
			until = now.Add(l.aloneAfter)
		}
		known = known || self
		l.mu.Lock()
		l.alone = err == nil && self && others == 0 && !now.Before(until)
		l.mu.Unlock()
	}
}
