package auth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestCheckToken(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{"a", "sk-live_1.2~3+/=", "two words", strings.Repeat("x", MaxToken)} {
		heraldtest.Must(t, CheckToken(ok))
	}
	for _, bad := range []string{"", " a", "a ", "a\n", "a\r\nHost: b", "a\tb", "a\x00", "ä", "\x7f", strings.Repeat("x", MaxToken+1), "Bearer abc", "bearer abc"} {
		err := CheckToken(bad)
		heraldtest.Fails(t, bad, err)
		heraldtest.Lacks(t, "the error", fmt.Sprint(err), "abc")
	}
}

// countingTokens is a ledger that counts its calls.
type countingTokens struct {
	RenewalRecords  // none
	tokens          []records.Token
	asked, released int
	held            bool
	err             error
}

func (l *countingTokens) AgentTokens(context.Context, erc8004.Agent) ([]records.Token, bool, error) {
	l.asked++
	return slices.Clone(l.tokens), l.held, l.err
}

func (l *countingTokens) PinTokenPath(_ context.Context, _ records.Token, path string) (string, error) {
	if len(l.tokens) > 0 && l.err == nil {
		if l.tokens[0].Path == "" {
			l.tokens[0].Path = path
		}
		path = l.tokens[0].Path
	}
	return path, l.err
}

func (l *countingTokens) ReleaseHeld(context.Context, erc8004.Agent, ...outcome.Reason) (int, []ledger.Task, error) {
	l.released++
	return 1, nil, l.err
}

// TestCredentialsMemory checks that the ledger is read once per agent, epoch and minute.
func TestCredentialsMemory(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	l := &countingTokens{}
	c := must(New(Config{Ledger: l, Records: l, Keys: must(secret.Create()), Classify: classify.Error, OAuth: &authority{}, Entries: 2, Now: func() time.Time { return now }}))
	a := func(id string) erc8004.Agent { return erc8004.Agent{ChainID: 1, Registry: "0xaa", ID: id} }
	for i, step := range []struct {
		agent string
		epoch int64
		later time.Duration
		asked int
	}{
		{"1", 1, 0, 1}, {"1", 1, 59 * time.Second, 1}, {"1", 1, time.Second, 2}, {"1", 2, 0, 3}, {"1", 1, 0, 3}, // an older claim may use the entry of a newer epoch
		{"2", 0, 0, 4}, {"3", 0, 0, 5}, {"1", 2, 0, 6},
	} {
		now = now.Add(step.later)
		if _, err := c.readTokens(t.Context(), a(step.agent), step.epoch); err != nil || l.asked != step.asked {
			t.Errorf("step %d: asked %d times, want %d; %v", i, l.asked, step.asked, err)
		}
	}
	l.err = errors.New("away")
	_, err := c.readTokens(t.Context(), a("9"), 0)
	heraldtest.Fails(t, "while the ledger is away", err)
	l.err = nil
	must(c.readTokens(t.Context(), a("9"), 0)) // a failure is not remembered
}

// TestCredentialOf checks that endpoints with different URLs or headers have different credentials.
func TestCredentialOf(t *testing.T) {
	t.Parallel()
	h := func(pairs ...string) map[string]secret.Secret {
		m := map[string]secret.Secret{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = secret.New(pairs[i+1])
		}
		return m
	}
	seen := map[[32]byte]int{}
	for i, e := range []mcpcall.Endpoint{{URL: "https://a"}, {URL: "https://b"}, {URL: "https://a/x"}, {URL: "https://a/y"}, {URL: "https://a", Headers: h("X", "1")}, {URL: "https://a", Headers: h("X", "2")},
		{URL: "https://a", Headers: h("Y", "1")}, {URL: "https://a", Headers: h("X", "1", "Y", "2")}, {URL: "https://a", Headers: h("X", "1Y2")}} {
		if j, twice := seen[e.ClientKey()]; twice {
			t.Errorf("%d and %d are the same", i, j)
		}
		seen[e.ClientKey()] = i
	}
}
