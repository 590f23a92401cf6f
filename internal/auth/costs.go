package auth

import (
	"context"
	"time"
)

// costsKey is the context key of the *time.Duration of WithCosts.
type costsKey struct{}

// WithCosts returns a context for Authorize and WithTokenRefresh. With it, they add to asked how long the requests for
// an access token took, to the agent and to its authorization server. This includes waiting for the requests of other
// callers and workers for the same token, but not the time of Postgres and Redis. Only one call at a time may use the
// context.
func WithCosts(ctx context.Context, asked *time.Duration) context.Context {
	return context.WithValue(ctx, costsKey{}, asked)
}

// addCost adds took to the duration that WithCosts stored in ctx. Without one, it does nothing.
func addCost(ctx context.Context, took time.Duration) {
	if asked, ok := ctx.Value(costsKey{}).(*time.Duration); ok {
		*asked += took
	}
}
