package server

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// tokenOf returns a token in the form of `worker api-token create`.
func tokenOf(digit string) secret.Secret {
	return secret.New("herald_" + strings.Repeat(digit, 12) + "_" + strings.Repeat(digit, 43))
}

// TestCallersAreCached: the tokens are loaded again for an unknown token, and for a known one after TokenCache.
func TestCallersAreCached(t *testing.T) {
	t.Parallel()
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
	// The first use of a known token cannot be noted.
	c.known = func(context.Context, secret.Secret) (operator.Caller, error) { return operator.Caller{}, away }
	c.loaded = time.Now()
	find("2", away, 6)
	if _, err := c.find(t.Context(), secret.New("no API token")); !errors.Is(err, operator.ErrUnknownToken) || loads != 6 {
		t.Error(err, loads)
	}
}

// bare is a backend whose store has only a Close.
type bare struct{ operator.Backend }

func (bare) OpenStore(context.Context, operator.StoreOptions) (*operator.Session, error) {
	return &operator.Session{Close: func() {}}, nil
}

// TestLoadSparesCaller: all callers wait for a load, so it does not wait for the slow reads of the stream that began it.
func TestLoadSparesCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		op := operator.New(operator.Config{Backend: bare{}, Timeout: 10 * time.Second})
		slow := operator.WithCaller(t.Context(), operator.Caller{Name: "slow"})
		for range 20 {
			go op.ReadBounded(slow, func(ctx context.Context, _ *operator.Session) error {
				<-ctx.Done()
				return nil
			})
		}
		synctest.Wait()
		c := &callers{load: func(ctx context.Context) (operator.FindCaller, error) {
			err := op.ReadBounded(ctx, func(context.Context, *operator.Session) error { return nil })
			return func(context.Context, secret.Secret) (operator.Caller, error) { return operator.Caller{}, nil }, err
		}}
		began := time.Now()
		if _, err := c.find(slow, tokenOf("1")); err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// TestKnownTokens: while Postgres does not answer, or takes no writes, a token of the last load is still valid for the
// routes that answer in outages, and for no other.
func TestKnownTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var away, readOnly error
		c := &callers{load: func(context.Context) (operator.FindCaller, error) {
			if away != nil {
				time.Sleep(10 * time.Second)
			}
			return func(_ context.Context, token secret.Secret) (operator.Caller, error) {
				if token.Compare(tokenOf("1").Reveal()) {
					return operator.Caller{Name: "1"}, readOnly
				}
				return operator.Caller{}, operator.ErrUnknownToken
			}, away
		}}
		find := func(digit string, wantKnown, wantOther error, within time.Duration) {
			t.Helper()
			began := time.Now()
			if caller, err := c.findKnown(t.Context(), tokenOf(digit)); !errors.Is(err, wantKnown) ||
				err == nil && caller.Name != digit || time.Since(began) > within {
				t.Errorf("%s in outages: %+v, %v after %s", digit, caller, err, time.Since(began))
			}
			if _, err := c.find(t.Context(), tokenOf(digit)); !errors.Is(err, wantOther) {
				t.Errorf("%s: %v, want %v", digit, err, wantOther)
			}
		}
		find("1", nil, nil, 0)
		readOnly = context.Canceled
		find("1", nil, readOnly, 0)
		readOnly, away = nil, context.DeadlineExceeded
		time.Sleep(TokenCache)
		find("1", nil, away, knownWait)
		find("2", away, away, 20*time.Second)
	})
}

// TestMetricsInOutages: /metrics answers a known token while Postgres does not, and /readyz says why.
func TestMetricsInOutages(t *testing.T) {
	t.Parallel()
	s := serve(t, "127.0.0.1:0", token, func() (waiting, degraded map[string]string) {
		return map[string]string{"postgres": "no answer"}, nil
	})
	s.callers.load = func(context.Context) (operator.FindCaller, error) { return nil, context.DeadlineExceeded }
	s.callers.known = func(context.Context, secret.Secret) (operator.Caller, error) {
		return operator.Caller{Name: "prometheus", Scopes: []operator.Scope{operator.ScopeRead}}, nil
	}
	header := map[string]string{"Authorization": "Bearer " + tokenOf("1").Reveal()}
	for path, want := range map[string]string{"/metrics": "metrics here", "/readyz": "no answer",
		config.SettingsPath: "the token cannot be checked"} {
		_, body := ask(t, s, "GET", path, header)
		heraldtest.Contains(t, path, body, want)
	}
}
