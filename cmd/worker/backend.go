package main

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/service"
	"github.com/agentherald/herald/internal/store"
)

// database is where a command finds the rows.
type database struct {
	url   secret.Secret
	close func()
}

func (a *app) database() (database, error) {
	b, err := service.Attach(a.ctx, a.cfg, a.log)
	if err != nil {
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
	close func()
}

func (a *app) store() (*openStore, error) {
	b, err := service.Attach(a.ctx, a.cfg, a.log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(a.ctx, time.Minute)
	defer cancel()
	st, err := service.OpenStore(ctx, a.cfg, b, nil, a.log)
	if err != nil {
		a.release(b)
		return nil, err
	}
	return &openStore{st, func() { st.Close(); a.release(b) }}, nil
}
