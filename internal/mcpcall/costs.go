package mcpcall

import (
	"context"
	"time"
)

// Costs are what requests took beside what they ask for: the time in which they waited for a connection, or for a list
// of tools, that was not at hand, and how many of these were begun for them. One goroutine at a time uses them.
type Costs struct {
	Connecting, Listing   time.Duration
	Connections, Listings int
}

type costsKey struct{}

// WithCosts has the requests with that context add to c.
func WithCosts(ctx context.Context, c *Costs) context.Context {
	return context.WithValue(ctx, costsKey{}, c)
}

// costsOf are the context's, or ones that nobody reads.
func costsOf(ctx context.Context) *Costs {
	if c, ok := ctx.Value(costsKey{}).(*Costs); ok {
		return c
	}
	return &Costs{}
}

// beginConnecting begins a wait for a connection, which the returned function ends.
func (c *Costs) beginConnecting(clock func() time.Time) func() {
	began := clock()
	return func() { c.Connecting += clock().Sub(began) }
}

// beginListing begins a wait for a list of tools, which the returned function ends.
func (c *Costs) beginListing(clock func() time.Time) func() {
	began := clock()
	return func() { c.Listing += clock().Sub(began) }
}
