package auth

import (
	"errors"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestReleaseFails checks that the held deliveries are released after the next success if Postgres does not release
// them after the first one.
func TestReleaseFails(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	const at = "https://agent.example"
	ledger := &countingTokens{tokens: []records.Token{storedToken(keys, at)}, held: true}
	z := must(New(Config{Ledger: ledger, Records: ledger, Opener: keys, Classify: classify.Error}))
	a := must(z.Authorize(t.Context(), Subject{}, endpointAt(at)))
	ledger.err = errors.New("Postgres is away")
	z.ObserveSuccess(t.Context(), a)
	ledger.err = nil
	for range 2 { // the second success finds nothing to release
		z.ObserveSuccess(t.Context(), a)
	}
	heraldtest.Equal(t, "attempts to release", ledger.released, 2)
}
