//go:build linux

package main

import (
	"context"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentherald/herald/scripts/script"
)

// onlookers are the requests of operators' browsers: each page at its refresh interval, and one stream of events.
var onlookers = []struct {
	path  string
	every time.Duration
}{
	{"/", 5 * time.Second}, {"/", 5 * time.Second}, {"/", 5 * time.Second},
	{"/deliveries", 10 * time.Second}, {"/deliveries?status=waiting", 10 * time.Second}, {"/deliveries?status=queued", 10 * time.Second},
	{"/agents", 10 * time.Second}, {"/agents/8453:1", 10 * time.Second}, {"/metrics", 15 * time.Second},
	{"/v1/events", time.Second}, // this one does not end
}

// lookOn sends the requests of all onlookers until done is called. done returns the first error of a request.
func lookOn(ctx context.Context, address string) (done func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var all errgroup.Group
	for _, o := range onlookers {
		all.Go(func() error {
			tick := time.NewTicker(o.every)
			defer tick.Stop()
			for {
				if err := lookAt(ctx, address+o.path); err != nil && ctx.Err() == nil {
					return err
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
	return func() error {
		cancel()
		return all.Wait()
	}
}

func lookAt(ctx context.Context, address string) error {
	return script.Try(func() {
		res := script.Must(http.DefaultClient.Do(script.Must(http.NewRequestWithContext(ctx, http.MethodGet, address, nil))))
		defer script.Close(res.Body.Close)
		script.Must(io.Copy(io.Discard, res.Body))
	})
}
