//go:build linux

package main

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
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

// lookOn sends the requests of all onlookers until done is called. done returns the last error of a request.
func lookOn(ctx context.Context, address string) (done func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var mu sync.Mutex
	var fault error
	for _, o := range onlookers {
		all.Go(func() {
			tick := time.NewTicker(o.every)
			defer tick.Stop()
			for {
				if err := lookAt(ctx, address+o.path); err != nil && ctx.Err() == nil {
					mu.Lock()
					fault = err
					mu.Unlock()
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return func() error {
		cancel()
		all.Wait()
		return fault
	}
}

func lookAt(ctx context.Context, address string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	return err
}
