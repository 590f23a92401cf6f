package ratelimit

import (
	"context"
	"time"
)

const (
	// lookForOthers is the time between two checks whether there are other workers. Until the check, a new worker and
	// this one may each use the whole limit of an origin.
	lookForOthers = time.Second
	// aloneAfter is how long a worker continues to share its limits, even if Redis lists no other worker, after Redis
	// failed or lost its list of workers. It is longer than other workers need to be listed again (asynq's servers
	// renew their entry every 5 s).
	aloneAfter = 6 * time.Second
)

// watchOthers calls look (Config.Workers) periodically, until Close. It sets l.alone if Redis lists this worker and no
// other, and clears it if Redis lists another worker or not this one, or if look fails. If Redis listed this worker
// before, l.alone also stays cleared for aloneAfter after such a failure or such a list without this worker.
//
// While l.alone is set, the limiter counts only in this process, as during an outage, because only other workers need
// the counts in Redis. The process maintains its own counts at all times, so they are complete when l.alone is set.
// Redis never counts the calls that this worker began while l.alone was set. So when another worker appears, the two
// may exceed the limits until these calls end.
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
