package app

import (
	"context"
	"log/slog"
)

// service is a part of the worker that runs concurrently with the others.
type service struct {
	name string
	// start returns once the service runs. ctx bounds only the start; the service runs until stop.
	start func(ctx context.Context) error
	// stop returns once the service has stopped completely. It is called once, after a successful start.
	stop func()
}

// startAll starts services in order. stopAll stops the started ones in reverse order; it is never nil, and a second
// call does nothing.
func startAll(ctx context.Context, services []service, log *slog.Logger) (stopAll func(), err error) {
	var started []service
	stopAll = func() {
		for len(started) > 0 {
			last := started[len(started)-1]
			started = started[:len(started)-1]
			last.stop()
			log.Debug("service stopped", "service", last.name)
		}
	}
	for _, s := range services {
		if err := s.start(ctx); err != nil {
			return stopAll, err
		}
		log.Debug("service started", "service", s.name)
		started = append(started, s)
	}
	return stopAll, nil
}

// newLoop returns a service that runs one function until its context ends.
func newLoop(name string, run func(context.Context)) service {
	var cancel context.CancelFunc
	done := make(chan struct{})
	return service{name: name,
		start: func(ctx context.Context) error {
			ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
			go func() {
				defer close(done)
				run(ctx)
			}()
			return nil
		},
		stop: func() {
			cancel()
			<-done
		}}
}

// startAfter returns the service with a function that must succeed before each start.
func (s service) startAfter(first func(context.Context) error) service {
	start := s.start
	s.start = func(ctx context.Context) error {
		if err := first(ctx); err != nil {
			return err
		}
		return start(ctx)
	}
	return s
}
