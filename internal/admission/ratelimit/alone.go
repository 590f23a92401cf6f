package ratelimit

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
)

const (
	// lookForOthers is the time between two checks whether there are other workers. Until the next check, a new worker
	// and this one may each use the whole limit of an origin.
	lookForOthers = time.Second
	// aloneAfter is how long a worker continues to share its limits after Redis failed or lost its list of workers,
	// even if Redis lists no other worker. It is longer than other workers need to be listed again: asynq's servers
	// renew their entries every 5 s.
	aloneAfter = 6 * time.Second
)

// watchOthers calls look (Config.Workers) periodically, until Close. It sets l.alone if Redis lists this worker and no
// other. It clears l.alone if Redis lists another worker, does not list this one, or if look fails. If Redis had listed
// this worker before such a failure, it may have lost the entries of other workers too. Then l.alone stays cleared for
// aloneAfter.
//
// While l.alone is set, the limiter counts only in this process, as during an outage. When another worker starts, the
// two may exceed the limits together until this one has seen the other and committed its states.
func (l *Limiter) watchOthers(look func(context.Context) (others int, self bool, err error)) {
	defer l.tasks.Done()
	known := false // whether Redis has ever listed this worker
	var until time.Time
	for range loop.Every(l.life, l.lookForOthers) {
		ctx, cancel := context.WithTimeout(l.life, max(l.lookForOthers, l.timeout))
		others, self, err := look(ctx)
		cancel()
		now := time.Now()
		if known && (err != nil || !self) { // Redis may have lost the others' entries too
			until = now.Add(l.aloneAfter)
		}
		known = known || self
		l.setAlone(err == nil && self && others == 0 && !now.Before(until))
	}
}

// setAlone sets l.alone. If that clears it, setAlone commits what this process has changed alone.
func (l *Limiter) setAlone(alone bool) {
	l.mu.Lock()
	ends := l.alone && !alone
	l.alone = alone
	l.mu.Unlock()
	if ends {
		l.commitChanges()
	}
}
