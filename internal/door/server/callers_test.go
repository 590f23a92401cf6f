package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator"
)

// TestCallersAreCached: the tokens are loaded again for an unknown token, and for a known one after TokenCache.
func TestCallersAreCached(t *testing.T) {
	t.Parallel()
	tokenOf := func(digit string) secret.Secret {
		return secret.New("herald_" + strings.Repeat(digit, 12) + "_" + strings.Repeat(digit, 43))
	}
	loads, valid := 0, "1"
	var away error
	c := &callers{load: func(context.Context) (operator.FindCaller, error) {
		loads++
		good := tokenOf(valid).Reveal()
		return func(_ context.Context, token secret.Secret) (operator.Caller, error) {
			if token.Compare(good) {
				return operator.Caller{Name: token.Reveal()[7:8]}, nil
			}
			return operator.Caller{}, operator.ErrUnknownToken
		}, away
	}}
	find := func(digit string, want error, wantLoads int) {
		t.Helper()
		caller, err := c.find(t.Context(), tokenOf(digit))
		if !errors.Is(err, want) || loads != wantLoads || err == nil && caller.Name != digit {
			t.Errorf("%s: %+v, %v after %d loads, want %v after %d", digit, caller, err, loads, want, wantLoads)
		}
	}
	pass := func(d time.Duration) { c.loaded = c.loaded.Add(-d) }
	find("1", nil, 1)
	find("1", nil, 1)
	find("2", operator.ErrUnknownToken, 2)
	find("1", nil, 2)
	pass(TokenCache)
	find("1", nil, 3)
	valid = "2" // 1 was revoked
	find("1", nil, 3)
	find("2", nil, 4)
	find("1", operator.ErrUnknownToken, 5)
	pass(TokenCache)
	away = context.DeadlineExceeded
	find("2", away, 6)
	if _, err := c.find(t.Context(), secret.New("no API token")); !errors.Is(err, operator.ErrUnknownToken) || loads != 6 {
		t.Error(err, loads)
	}
}
