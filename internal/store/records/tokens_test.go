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
	var err error
	token.Ciphertext, err = k.Seal([]byte(plain), token.Binding())
	heraldtest.Must(t, err)
	return token
}

var authHeld = ledger.Outcome{Status: outcome.Held, Reason: outcome.AuthRequired, Stage: "call", Free: true, AgentError: "401"}

// TestSetToken: a stored token releases, in order, only the deliveries that were held because it was missing, and
// raises the epoch.
func TestSetToken(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	a := agentNamed("1")
	row := func() string {
		t.Helper()
		return value[string](t, s, `SELECT concat_ws(' ', epoch, state) FROM herald.agents WHERE agent_id = 1`)
	}
	if n, tasks, err := s.SetToken(t.Context(), sealedFor(t, k, a, tokenOrigin, "one")); n != 0 || tasks != nil || err != nil || row() != "1 pending" {
		t.Fatal(n, tasks, err, row()) // the agent has no row yet
	}
	for from := 1; from <= 1100; from += 500 {
		accept(t, s, feedbacks(1, from, min(500, 1101-from))...)
	}
	accept(t, s, feedbacks(2, 1, 1)...)
	exec(t, s, `UPDATE herald.deliveries SET status = 'held', reason = 'auth_required', handed_at = NULL`)
	exec(t, s, `UPDATE herald.deliveries SET reason = 'held_unknown' WHERE agent_id = 1 AND order_seq = 7`)
	exec(t, s, `UPDATE herald.agents SET state = 'needs_auth'`)
	released, tasks, err := s.SetToken(t.Context(), sealedFor(t, k, a, tokenOrigin, "two"))
	if released != 1099 || len(toRun(tasks)) != ledger.MaxDispatchedPerAgent || len(tasks) != ledger.MaxDispatchedPerAgent+released || err != nil || row() != "2 pending" || countDispatched(t, s) != ledger.MaxDispatchedPerAgent {
		t.Fatalf("%d released, %d tasks, %v, %s, %d dispatched", released, len(tasks), err, row(), countDispatched(t, s))
	}
	for i, want := range []int{1, 2, 3, 4, 5, 6, 8, 9} { // the seventh waits for another reason
		if got := value[int](t, s, `SELECT order_seq::int FROM herald.deliveries WHERE id = $1`, tasks[i].ID); got != want {
			t.Errorf("task %d is feedback %d, want %d", i, got, want)
		}
	}
	if n := value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE status = 'held'`); n != 2 {
		t.Errorf("%d are held", n)
	}
	list, held, err := s.AgentTokens(t.Context(), a)
	if err != nil || held || len(list) != 1 || list[0].UpdatedAt.Before(list[0].CreatedAt) {
		t.Fatal(list, held, err)
	}
	if plain, err := k.Open(list[0].Ciphertext, list[0].Binding()); err != nil || string(plain) != "two" {
		t.Errorf("%q, %v", plain, err)
	}
	if _, held, err := s.AgentTokens(t.Context(), agentNamed("2")); err != nil || !held {
		t.Error("nobody knows that agent 2 has a delivery held:", err)
	}
	if n, _, err := s.RemoveToken(t.Context(), a, tokenOrigin); n != 0 || err != nil || row() != "3 pending" {
		t.Error(n, err, row())
	}
	if _, _, err := s.RemoveToken(t.Context(), a, tokenOrigin); !errors.Is(err, ledger.ErrNotFound) || row() != "3 pending" {
		t.Error(err, row())
	}
	if n, tasks, err := s.ReleaseHeld(t.Context(), agentNamed("2"), outcome.AuthRequired); n != 1 || len(toRun(tasks)) != 1 || err != nil {
		t.Error(n, tasks, err)
	}
	if _, _, err := s.SetToken(t.Context(), records.Token{Agent: a, Origin: tokenOrigin, Header: "X", Ciphertext: []byte("in clear")}); err == nil {
		t.Error("a token in clear was stored")
	}
}

// TestTokenStoredMeanwhile: a delivery was called without a token, and the token is stored before the outcome is
// recorded. The delivery is not held, because nothing would release it.
func TestTokenStoredMeanwhile(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	a := agentNamed("1")
	c := claim(t, s, acceptOne(t, s, feedback(1, 1)))
	if _, _, err := s.SetToken(t.Context(), sealedFor(t, k, a, tokenOrigin, "one")); err != nil {
		t.Fatal(err)
	}
	r := record(t, s, c, authHeld)
	if len(r.Next) != 2 || r.Next[0].ID != c.ID || r.Next[1] != (ledger.Task{ID: c.ID, N: c.N, Ended: true}) {
		t.Fatalf("%+v", r)
	}
	// If it was called with the present token, it is held.
	c = claim(t, s, r.Next[0])
	if r := record(t, s, c, authHeld); len(r.Next) != 0 {
		t.Errorf("%+v", r)
	}
	if d := read(t, s, c.ID); d.Status != outcome.Held || d.Reason != outcome.AuthRequired || d.Attempts != 0 {
		t.Errorf("%+v", d)
	}
}

// TestLostClaimReleasesNothing: a worker that has lost its claim records that the delivery is held. That releases no
// other held delivery, even if the credential was stored since, because Record does not return tasks with ErrFenced.
func TestLostClaimReleasesNothing(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	a := agentNamed("1")
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
		id := fmt.Sprint(i)
		if _, _, err := s.SetToken(t.Context(), sealedFor(t, k, agentNamed(id), tokenOrigin, "secret")); err != nil {
			t.Fatal(err)
		}
		if change != "" {
			exec(t, s, `UPDATE herald.agent_mcp_tokens SET `+change+` WHERE agent_id = $1`, id)
		}
	}
	list, err := s.TokensAfter(t.Context(), nil)
	if err != nil || len(list) != 8 {
		t.Fatal(len(list), err)
	}
	opened := 0
	for _, token := range list {
		_, err := k.Open(token.Ciphertext, token.Binding())
		var closed *secret.DecryptError
		switch {
		case err == nil:
			opened++
		case !errors.As(err, &closed):
			t.Error(err)
		}
	}
	if opened != 1 {
		t.Errorf("%d of them open, only the one that was left alone should", opened)
	}
}

func TestTokenPagesAndReseal(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	soon, past := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	for i, at := range []*time.Time{nil, &soon, &past} {
		token := sealedFor(t, k, agentNamed(fmt.Sprint(i)), tokenOrigin, "a")
		token.ExpiresAt = at
		if _, _, err := s.SetToken(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.SetToken(t.Context(), sealedFor(t, k, agentNamed("0"), "https://b.example", "b")); err != nil {
		t.Fatal(err)
	}
	if e, err := s.TokensExpiring(t.Context(), 24*time.Hour); err != nil || e != (records.Expiring{Stored: 4, Soon: 1, Expired: 1}) {
		t.Errorf("%+v %v", e, err)
	}
	first, err := s.TokensAfter(t.Context(), nil)
	if err != nil || len(first) != 4 || first[0].Origin != tokenOrigin || first[1].Origin != "https://b.example" || first[2].ID != "1" {
		t.Fatal(first, err)
	}
	// Sorted by number, not as text.
	if _, _, err := s.SetToken(t.Context(), sealedFor(t, k, agentNamed("10"), tokenOrigin, "c")); err != nil {
		t.Fatal(err)
	}
	if last, err := s.TokensAfter(t.Context(), &first[3]); err != nil || len(last) != 1 || last[0].ID != "10" {
		t.Error(last, err)
	}
	rest, err := s.TokensAfter(t.Context(), &first[1])
	if err != nil || len(rest) != 3 || rest[0].ID != "1" {
		t.Error(rest, err)
	}
	other := newKeys(t)
	again, err := other.Seal([]byte("a"), first[0].Binding())
	heraldtest.Must(t, err)
	if changed, err := s.ResealToken(t.Context(), first[0], again); !changed || err != nil {
		t.Error(changed, err)
	}
	if changed, err := s.ResealToken(t.Context(), first[0], again); changed || err != nil {
		t.Error("a ciphertext that was replaced meanwhile was replaced again", err)
	}
	if id := value[int64](t, s, `SELECT key_id FROM herald.agent_mcp_tokens WHERE agent_id = 0 AND origin = $1`, tokenOrigin); uint32(id) != other.PrimaryID() {
		t.Errorf("key %d, want %d", id, other.PrimaryID())
	}
}

// TestTokenPath: the first path stays pinned until another token replaces the present one. The new token may have no
// path.
func TestTokenPath(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	token := sealedFor(t, k, agentNamed("1"), tokenOrigin, "one")
	pin := func(path, want string) {
		t.Helper()
		if got, err := s.PinTokenPath(t.Context(), token, path); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
		list, err := s.TokensAfter(t.Context(), nil)
		if err != nil || len(list) != 1 || list[0].Path != want {
			t.Errorf("%+v, %v", list, err)
		}
	}
	if _, err := s.PinTokenPath(t.Context(), token, "/"); !errors.Is(err, ledger.ErrNotFound) {
		t.Error(err)
	}
	for _, path := range []string{"", "/a", "", "/"} {
		token.Path = path
		if _, _, err := s.SetToken(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		if path == "" {
			pin("/first", "/first")
			pin("/second", "/first")
			continue
		}
		pin("/first", path)
	}
	token.Path = "a"
	if _, _, err := s.SetToken(t.Context(), token); err == nil {
		t.Error("a path without a slash is stored")
	}
}
