package app

import (
	"context"
	"log/slog"
)

// Service is a part of the worker that runs concurrently with the others. To add one, add it to listServices in
// worker.go.
type Service interface {
	Name() string
	// Start returns once the service runs. ctx bounds only the start; the service runs until Stop.
	Start(ctx context.Context) error
	// Stop returns once the service has stopped completely. It is called once, after a successful Start.
	Stop()
}

// startAll starts services in order. stopAll stops the started ones in reverse order; it is never nil, and a second
// call does nothing.
func startAll(ctx context.Context, services []Service, log *slog.Logger) (stopAll func(), err error) {
	var started []Service
	stopAll = func() {
		for len(started) > 0 {
			last := started[len(started)-1]
			started = started[:len(started)-1]
			last.Stop()
			log.Debug("service stopped", "service", last.Name())
		}
	}
	for _, s := range services {
		if err := s.Start(ctx); err != nil {
			return stopAll, err
		}
		log.Debug("service started", "service", s.Name())
		started = append(started, s)
	}
	return stopAll, nil
}

// funcService is a Service made of two functions.
type funcService struct {
	name  string
	start func(context.Context) error
	stop  func()
}

func (s *funcService) Name() string                    { return s.name }
func (s *funcService) Start(ctx context.Context) error { return s.start(ctx) }
func (s *funcService) Stop()                           { s.stop() }

// loop is a Service that runs one function until its context ends.
type loop struct {
	name   string
	run    func(context.Context)
	cancel context.CancelFunc
	done   chan struct{}
}

func newLoop(name string, run func(context.Context)) *loop { return &loop{name: name, run: run} }

func (l *loop) Name() string { return l.name }

func (l *loop) Start(ctx context.Context) error {
	ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.done = make(chan struct{})
	go func() {
		defer close(l.done)
		l.run(ctx)
	}()
	return nil
}

func (l *loop) Stop() {
	l.cancel()
	<-l.done
}
