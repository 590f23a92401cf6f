package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

// database is where a command finds the rows.
type database struct {
	url   secret.Secret
	close func()
}

// database waits until Postgres answers; its schema may be of any age.
func (a *app) database() (database, error) {
	b, err := service.Attach(a.ctx, a.cfg, a.timeout, a.log)
	if err != nil {
		return database{}, err
	}
	if err := b.Reach(a.ctx, a.timeout, a.log); err != nil {
		a.release(b)
		return database{}, err
	}
	return database{b.DatabaseURL, func() { a.release(b) }}, nil
}

// release stops what Attach started.
func (a *app) release(b *service.Backend) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), 30*time.Second)
	defer cancel()
	if err := b.Close(ctx); err != nil {
		a.log.Warn("the embedded database did not stop in order", "error", err)
	}
}

// openStore is a store with what has to be closed after it.
type openStore struct {
	*store.Store
	redis      secret.Secret // zero: none at hand
	queue      *queue.Queue
	dispatcher *delivery.Dispatcher // nil: what is handed out waits for the worker's sweep
	close      func()
}

func (a *app) store() (*openStore, error) {
	b, err := service.Attach(a.ctx, a.cfg, a.timeout, a.log)
	if err != nil {
		return nil, err
	}
	st, err := service.OpenStore(a.ctx, a.cfg, b, a.timeout, a.log)
	if err != nil {
		a.release(b)
		return nil, err
	}
	return &openStore{Store: st, redis: b.RedisURL, close: func() { st.Close(); a.release(b) }}, nil
}

// readStore is a store for a command that reads one list or page and ends: its reading is under --timeout, too.
func (a *app) readStore() (*openStore, error) {
	st, err := a.store()
	if err != nil {
		return nil, err
	}
	closeStore := st.close
	ctx, cancel := context.WithTimeoutCause(a.ctx, a.timeout, &lateError{a.timeout})
	a.ctx, st.close = ctx, func() { cancel(); closeStore() }
	return st, nil
}

// lateError means that the database answered at first, and then not in time.
type lateError struct{ within time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("the database took longer than %s to answer: try again, or give it longer with --timeout", e.within)
}

// explainLate says in words that readStore's time was over.
func (a *app) explainLate(err error) error {
	var late *lateError
	if errors.Is(err, context.DeadlineExceeded) && errors.As(context.Cause(a.ctx), &late) {
		return late
	}
	return err
}

// dispatching is a store whose hand-outs can be put into Redis, when there is one at hand.
func (a *app) dispatching() (*openStore, error) {
	st, err := a.store()
	if err != nil || st.redis.IsZero() {
		return st, err
	}
	if st.queue, err = queue.Open(queue.Config{URL: st.redis, Logger: a.log}); err == nil {
		st.dispatcher, err = delivery.NewDispatcher(st.queue, a.log)
	}
	if err != nil {
		st.close()
		return nil, err
	}
	closeStore := st.close
	st.close = func() { _ = st.queue.Close(); closeStore() }
	return st, nil
}

// dispatch puts tasks into Redis. A Redis that does not take one is not asked again: the sweep finds what it lacks.
func (s *openStore) dispatch(ctx context.Context, tasks []store.Task) {
	if s.dispatcher != nil && s.dispatcher.Dispatch(ctx, tasks) < len(tasks) {
		s.dispatcher = nil
	}
}

// renewals is where refresh tokens wait that Postgres could not take; nil: no Redis is at hand.
func (s *openStore) renewals() delivery.RenewalSpool {
	if s.queue == nil {
		return nil
	}
	return s.queue
}
