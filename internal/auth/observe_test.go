package auth

import (
	"errors"
	"os"
	"path/filepath"
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
	z := must(New(Config{Ledger: ledger, Records: ledger, Keys: keys, Classify: classify.Error, OAuth: &authority{}}))
	a := must(z.Authorize(t.Context(), Subject{}, endpointAt(at)))
	ledger.err = errors.New("Postgres is away")
	z.ObserveSuccess(t.Context(), a)
	ledger.err = nil
	for range 2 { // the second success finds nothing to release
		z.ObserveSuccess(t.Context(), a)
	}
	heraldtest.Equal(t, "attempts to release", ledger.released, 2)
}

// TestTokenFileReturns checks that the deliveries that are held because a token's file is missing are released after the
// first success with the file, each time that the file was missing.
func TestTokenFileReturns(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	const at = "https://agent.example"
	path := filepath.Join(t.TempDir(), "token")
	ledger := &countingTokens{tokens: []records.Token{storedToken(keys, at, func(t *records.Token) {
		t.Scheme = records.SchemeFile
		t.Ciphertext = must(keys.Seal([]byte(path), t.Binding()))
	})}}
	z := must(New(Config{Ledger: ledger, Records: ledger, Keys: keys, Classify: classify.Error, OAuth: &authority{}}))
	for times := range 3 {
		_, err := z.Authorize(t.Context(), Subject{}, endpointAt(at))
		wantHeld(t, err, "the file that holds the token stored for "+at+" cannot be read")
		heraldtest.Must(t, os.WriteFile(path, []byte(plainToken), 0o600))
		for range 2 { // the second success finds nothing to release
			z.ObserveSuccess(t.Context(), must(z.Authorize(t.Context(), Subject{}, endpointAt(at))))
		}
		heraldtest.Equal(t, "releases", ledger.released, times+1)
		heraldtest.Must(t, os.Remove(path))
	}
}
