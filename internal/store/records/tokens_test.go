package records_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

const tokenOrigin = "https://agent.example"

func newKeys(t testing.TB) *secret.Keyset {
	t.Helper()
	k, err := secret.Create()
	heraldtest.Must(t, err)
	return k
}

// sealedFor returns a bearer token of an agent for an origin.
func sealedFor(t testing.TB, k *secret.Keyset, a erc8004.Agent, origin netguard.CredentialOrigin, plain string) records.Token {
	t.Helper()
	token := records.Token{Agent: a, Origin: origin, Scheme: records.SchemeBearer, Header: "Authorization"}
	token.Ciphertext = sealed(t, k, plain, token.Binding())
	return token
}

func storeToken(t testing.TB, s storetest.Postgres, token records.Token) {
	t.Helper()
	_, _, err := s.SetToken(t.Context(), token)
	heraldtest.Must(t, err)
}

var authHeld = ledger.Outcome{Status: outcome.Held, Reason: outcome.AuthRequired, Stage: "call", Free: true, AgentError: "401"}

// TestSetToken: a stored token releases, in order, only the deliveries that were held because it was missing, and
// raises the epoch.
func TestSetToken(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	a := storetest.Agent(1)
	row := func() string {
		t.Helper()
		return value[string](t, s, `SELECT concat_ws(' ', epoch, state) FROM herald.agents WHERE agent_id = 1`)
	}
	if n, tasks, err := s.SetToken(t.Context(), sealedFor(t, k, a, tokenOrigin, "one")); n != 0 || tasks != nil || err != nil || row() != "1 pending" {
		t.Fatal(n, tasks, err, row()) // the agent has no row yet
	}
	accept(t, s, feedbacks(2, 1, 1)...)
	holdMany(t, s, outcome.AuthRequired)
	exec(t, s, `UPDATE herald.agents SET state = 'needs_auth'`)
	released, tasks, err := s.SetToken(t.Context(), sealedFor(t, k, a, tokenOrigin, "two"))
	if released != 1099 || len(toRun(tasks)) != ledger.MaxDispatchedPerAgent || len(tasks) != ledger.MaxDispatchedPerAgent+released || err != nil || row() != "2 pending" || countDispatched(t, s) != ledger.MaxDispatchedPerAgent {
		t.Fatalf("%d released, %d tasks, %v, %s, %d dispatched", released, len(tasks), err, row(), countDispatched(t, s))
	}
	for i, want := range []int{1, 2, 3, 4, 5, 6, 8, 9} { // the seventh waits for another reason
		got := value[int](t, s, `SELECT order_seq::int FROM herald.deliveries WHERE id = $1`, tasks[i].ID)
		heraldtest.Equal(t, fmt.Sprint("the feedback of task ", i), got, want)
	}
	heraldtest.Equal(t, "held deliveries", countHeld(t, s), "1:1 2:1")
	list, held, err := s.AgentTokens(t.Context(), a)
	if err != nil || held || len(list) != 1 || list[0].UpdatedAt.Before(list[0].CreatedAt) {
		t.Fatal(list, held, err)
	}
	opens(t, k, list[0].Ciphertext, list[0].Binding(), "two")
	heraldtest.Equal(t, "agent 2 has a delivery held", fmt.Sprint(s.AgentTokens(t.Context(), storetest.Agent(2))), "[] true <nil>")
	heraldtest.Equal(t, "released by the removal", fmt.Sprint(s.RemoveToken(t.Context(), a, tokenOrigin)), "0 [] <nil>")
	_, _, err = s.RemoveToken(t.Context(), a, tokenOrigin)
	heraldtest.Fails(t, "another removal", err, ledger.ErrNotFound)
	heraldtest.Equal(t, "the agent", row(), "3 pending")
	if n, tasks, err := s.ReleaseHeld(t.Context(), storetest.Agent(2), outcome.AuthRequired); n != 1 || len(toRun(tasks)) != 1 || err != nil {
		t.Error(n, tasks, err)
	}
	_, _, err = s.SetToken(t.Context(), records.Token{Agent: a, Origin: tokenOrigin, Header: "X", Ciphertext: []byte("in clear")})
	heraldtest.Fails(t, "to store a token in clear", err)
}

// TestLostClaimReleasesNothing: a worker that has lost its claim records that the delivery is held. That releases no
// other held delivery, even if the credential was stored since, because Record does not return tasks with ErrFenced.
func TestLostClaimReleasesNothing(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	a := storetest.Agent(1)
	_, tasks := accept(t, s, feedbacks(1, 1, 2)...)
	lost, held := claim(t, s, tasks[0]), claim(t, s, tasks[1])
	record(t, s, held, authHeld)
	exec(t, s, `UPDATE herald.agents SET epoch = epoch + 1`) // as SetToken does, which would release the held one
	exec(t, s, `UPDATE herald.work SET claim_no = nextval('herald.claim_no') WHERE id = $1`, lost.ID)
	if r, err := s.Record(t.Context(), lost, authHeld); !errors.Is(err, ledger.ErrFenced) || read(t, s, held.ID).Status != outcome.Held {
		t.Errorf("%+v, %v; the other one is %s", r, err, read(t, s, held.ID).Status)
	}
	if n, tasks, err := s.SetToken(t.Context(), sealedFor(t, k, a, tokenOrigin, "one")); n != 1 || len(tasks) != 2 || err != nil {
		t.Error(n, tasks, err)
	}
}

// TestTokenMovedBySQL: a token whose row was changed to another agent, origin, scheme or header cannot be decrypted.
func TestTokenMovedBySQL(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	for i, change := range []string{"", "chain_id = 1", "identity_registry = '0xaa'", "agent_id = 77", "origin = 'https://evil.example'", "scheme = 'header'", "header = 'X-Key'", "issuer = 'https://evil.example'"} {
		storeToken(t, s, sealedFor(t, k, storetest.Agent(i), tokenOrigin, "secret"))
		if change != "" {
			exec(t, s, `UPDATE herald.agent_mcp_tokens SET `+change+` WHERE agent_id = $1`, i)
		}
	}
	list, err := s.TokensAfter(t.Context(), nil)
	if err != nil || len(list) != 8 {
		t.Fatal(len(list), err)
	}
	for _, token := range list {
		_, err := k.Open(token.Ciphertext, token.Binding())
		_, closed := errors.AsType[*secret.DecryptError](err)
		isFirst := token.Agent == storetest.Agent(0) // its row was not changed
		if isFirst != (err == nil) || !isFirst && !closed {
			t.Errorf("%+v: %v", token, err)
		}
	}
}

func TestTokenPagesAndReseal(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	for i, at := range []*time.Time{nil, &soon, &past} {
		token := sealedFor(t, k, storetest.Agent(i), tokenOrigin, "a")
		token.ExpiresAt = at
		storeToken(t, s, token)
	}
	storeToken(t, s, sealedFor(t, k, storetest.Agent(0), "https://b.example", "b"))
	e, err := s.TokensExpiring(t.Context(), 24*time.Hour)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "the tokens", e, records.Expiring{Stored: 4, Soon: 1, Expired: 1})
	storeToken(t, s, sealedFor(t, k, storetest.Agent(10), tokenOrigin, "c")) // sorted by number, not as text
	list := func(after *records.Token) (found []records.Token, names string) {
		t.Helper()
		found, err := s.TokensAfter(t.Context(), after)
		heraldtest.Must(t, err)
		for _, token := range found {
			names += token.ID + " " + string(token.Origin) + " "
		}
		return found, names
	}
	first, names := list(nil)
	const rest = "1 " + tokenOrigin + " 2 " + tokenOrigin + " 10 " + tokenOrigin + " "
	heraldtest.Equal(t, "all tokens", names, "0 "+tokenOrigin+" 0 https://b.example "+rest)
	_, names = list(&first[1])
	heraldtest.Equal(t, "the tokens after the second", names, rest)
	other := newKeys(t)
	again := sealed(t, other, "a", first[0].Binding())
	for _, want := range []string{"true <nil>", "false <nil>"} { // the second time, it was replaced meanwhile
		heraldtest.Equal(t, "the token was replaced", fmt.Sprint(s.ResealToken(t.Context(), first[0], again)), want)
	}
	key := value[int64](t, s, `SELECT key_id FROM herald.agent_mcp_tokens WHERE agent_id = 0 AND origin = $1`, tokenOrigin)
	heraldtest.Equal(t, "the key", uint32(key), other.PrimaryID())
}

// TestTokenPath: the first path stays pinned until another token replaces the present one. The new token may have no
// path.
func TestTokenPath(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	token := sealedFor(t, k, storetest.Agent(1), tokenOrigin, "one")
	pin := func(path, want string) {
		t.Helper()
		got, err := s.PinTokenPath(t.Context(), token, path)
		heraldtest.Must(t, err)
		heraldtest.Equal(t, "the path", got, want)
		list, err := s.TokensAfter(t.Context(), nil)
		if err != nil || len(list) != 1 || list[0].Path != want {
			t.Errorf("%+v, %v", list, err)
		}
	}
	_, err := s.PinTokenPath(t.Context(), token, "/")
	heraldtest.Fails(t, "before the token is stored", err, ledger.ErrNotFound)
	for _, path := range []string{"", "/a", "", "/"} {
		token.Path = path
		storeToken(t, s, token)
		if path == "" {
			pin("/first", "/first")
			pin("/second", "/first")
			continue
		}
		pin("/first", path)
	}
	token.Path = "a"
	_, _, err = s.SetToken(t.Context(), token)
	heraldtest.Fails(t, "a path without a slash", err)
}
