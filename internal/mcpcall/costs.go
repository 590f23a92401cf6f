package mcpcall

import (
	"context"
	"time"
)

// Costs measure the overhead of requests: how long they waited for a connection or for a tool list that was not cached,
// and how many connections and listings were started for them. Only one goroutine may use a Costs at a time.
type Costs struct {
	Connecting, Listing   time.Duration
	Connections, Listings int
}

type costsKey struct{}

// WithCosts returns a context whose requests add their costs to c.
func WithCosts(ctx context.Context, c *Costs) context.Context {
	return context.WithValue(ctx, costsKey{}, c)
}

// costsOf returns the Costs of ctx, or a new one that is discarded.
func costsOf(ctx context.Context) *Costs {
	if c, ok := ctx.Value(costsKey{}).(*Costs); ok {
		return c
	}
	return &Costs{}
}

// beginConnecting starts timing a wait for a connection. The returned function ends it.
func (c *Costs) beginConnecting(clock func() time.Time) func() {
	began := clock()
	return func() { c.Connecting += clock().Sub(began) }
}

// beginListing starts timing a wait for a tool list. The returned function ends it.
func (c *Costs) beginListing(clock func() time.Time) func() {
	began := clock()
	return func() { c.Listing += clock().Sub(began) }
}
