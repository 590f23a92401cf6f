package mcpcall

import (
	"context"
	"time"
)

// Costs measures the overhead of the requests of one context (WithCosts). Connecting and Listing are the times for
// which they waited for a connection and for a tool list that was not cached. Connections and Listings are the numbers
// of connections and listings that were started for them. Only one goroutine may use a Costs at a time.
type Costs struct {
	Connecting, Listing   time.Duration
	Connections, Listings int
}

type costsKey struct{}

// WithCosts returns a context whose requests add their costs to c.
func WithCosts(ctx context.Context, c *Costs) context.Context {
	return context.WithValue(ctx, costsKey{}, c)
}

// costsOf returns the Costs of ctx. If ctx has none, it returns a new one, which is discarded.
func costsOf(ctx context.Context) *Costs {
	if c, ok := ctx.Value(costsKey{}).(*Costs); ok {
		return c
	}
	return &Costs{}
}

// measureWait starts to measure a wait. The returned function adds its duration to sum.
func measureWait(sum *time.Duration, clock func() time.Time) func() {
	began := clock()
	return func() { *sum += clock().Sub(began) }
}
