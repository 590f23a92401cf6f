package records_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

const tokenIssuer = "https://login.example"

// oauthFor returns an OAuth credential of an agent for tokenOrigin.
func oauthFor(t testing.TB, k *secret.Keyset, a erc8004.Agent, plain string) records.Token {
	t.Helper()
	token := records.Token{Agent: a, Origin: tokenOrigin, Scheme: records.SchemeClientCredentials, Header: "Authorization", Issuer: tokenIssuer}
	token.Ciphertext = sealed(t, k, plain, token.Binding())
	return token
}

func sealed(t testing.TB, k *secret.Keyset, plain string, b secret.Binding) []byte {
	t.Helper()
	c, err := k.Seal([]byte(plain), b)
	heraldtest.Must(t, err)
	return c
}

func opens(t testing.TB, k *secret.Keyset, c []byte, b secret.Binding, want string) {
	t.Helper()
	if plain, err := k.Open(c, b); err != nil || string(plain) != want {
		t.Errorf("%q, %v; want %q", plain, err, want)
	}
}

// begin leases a renewal, and checks whether the lease was given.
func begin(t testing.TB, s storetest.Postgres, token records.Token, seen []byte, given bool) records.Renewal {
	t.Helper()
	r, err := s.LeaseRenewal(t.Context(), token, seen, time.Minute)
	if err != nil || (r.No != 0) != given {
		t.Fatalf("%+v, %v; given: %t", r, err, given)
	}
	return r
}

// TestRenewal: one worker at a time renews, and the others find the token that it saved.
func TestRenewal(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	token := oauthFor(t, k, storetest.Agent(1), "credential")
	storeToken(t, s, token)

	if r, err := s.LeaseRenewal(t.Context(), token, nil, 0); err != nil || r.No != 0 || r.Token.Issuer != tokenIssuer {
		t.Fatalf("who only looks gets %+v, %v", r, err)
	}
	r := begin(t, s, token, nil, true)
	if r.Access != nil || r.Token.Issuer != tokenIssuer || !r.Token.OAuth() {
		t.Fatalf("%+v", r)
	}
	opens(t, k, r.Token.Ciphertext, r.Token.Binding(), "credential")
	heraldtest.Equal(t, "the access token of another", begin(t, s, token, nil, false).Access, nil)
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	first := records.Access{Ciphertext: sealed(t, k, "first", token.AccessBinding()), ExpiresAt: &end}
	heraldtest.Must(t, s.SaveRenewal(t.Context(), r, first, nil))
	found := begin(t, s, token, nil, false) // an access token exists now
	if found.Access == nil || !found.Access.ExpiresAt.Equal(end) {
		t.Fatalf("%+v", found)
	}
	opens(t, k, found.Access.Ciphertext, found.Token.AccessBinding(), "first")
	opens(t, k, found.Token.Ciphertext, found.Token.Binding(), "credential")

	// The next renewal, with another refresh token.
	r = begin(t, s, token, found.Access.Ciphertext, true)
	heraldtest.Equal(t, "what the renewal replaces", r.Access.Ciphertext, first.Ciphertext)
	second := records.Access{Ciphertext: sealed(t, k, "second", token.AccessBinding())}
	heraldtest.Must(t, s.SaveRenewal(t.Context(), r, second, sealed(t, k, "rotated", token.Binding())))
	found = begin(t, s, token, first.Ciphertext, false)
	if found.Access == nil || found.Access.ExpiresAt != nil || !found.Token.UpdatedAt.Equal(r.Token.UpdatedAt) {
		t.Fatalf("%+v", found)
	}
	opens(t, k, found.Access.Ciphertext, found.Token.AccessBinding(), "second")
	opens(t, k, found.Token.Ciphertext, found.Token.Binding(), "rotated")

	// One renewal that yields, and one whose worker dies.
	r = begin(t, s, token, second.Ciphertext, true)
	heraldtest.Must(t, s.YieldRenewal(t.Context(), r))
	r = begin(t, s, token, second.Ciphertext, true)
	exec(t, s, `UPDATE herald.agent_mcp_access SET renewing_until = now() - interval '1 s'`)
	again := begin(t, s, token, second.Ciphertext, true)
	heraldtest.Fails(t, "a late renewal",
		s.SaveRenewal(t.Context(), r, first, sealed(t, k, "late", token.Binding())), records.ErrSuperseded)
	heraldtest.Must(t, s.YieldRenewal(t.Context(), r)) // it does not end another worker's renewal either
	begin(t, s, token, second.Ciphertext, false)
	heraldtest.Must(t, s.SaveRenewal(t.Context(), again, first, nil))
	heraldtest.Fails(t, "an access token in clear",
		s.SaveRenewal(t.Context(), again, records.Access{Ciphertext: []byte("in clear")}, nil))
	heraldtest.Fails(t, "a credential in clear", s.SaveRenewal(t.Context(), again, first, []byte("in clear")))
	heraldtest.Equal(t, "stored in clear",
		value[int](t, s, `SELECT count(*)::int FROM (SELECT ciphertext FROM herald.agent_mcp_access
		UNION ALL SELECT ciphertext FROM herald.agent_mcp_tokens) c WHERE position('in clear'::bytea IN ciphertext) > 0`), 0)
}

// TestCredentialReplaced: the result of a renewal of a replaced credential is discarded.
func TestCredentialReplaced(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	token := oauthFor(t, k, storetest.Agent(1), "old")
	storeToken(t, s, token)
	got := records.Access{Ciphertext: sealed(t, k, "of the old one", token.AccessBinding())}
	late := func(r records.Renewal) {
		t.Helper()
		heraldtest.Fails(t, "a late renewal",
			s.SaveRenewal(t.Context(), r, got, sealed(t, k, "old, rotated", token.Binding())), records.ErrSuperseded)
	}
	r := begin(t, s, token, nil, true)
	storeToken(t, s, oauthFor(t, k, storetest.Agent(1), "new"))
	late(r)
	next := begin(t, s, token, nil, true) // it has the same number
	late(r)
	heraldtest.Must(t, s.YieldRenewal(t.Context(), r))
	begin(t, s, token, nil, false) // the old renewal does not end the new one
	opens(t, k, next.Token.Ciphertext, next.Token.Binding(), "new")
	if !next.Token.UpdatedAt.After(r.Token.UpdatedAt) || next.Access != nil {
		t.Errorf("%+v after %+v", next, r)
	}

	// The credential is removed, and stored again with an access token.
	_, _, err := s.RemoveToken(t.Context(), token.Agent, token.Origin)
	heraldtest.Must(t, err)
	late(next)
	_, err = s.LeaseRenewal(t.Context(), token, nil, time.Minute)
	heraldtest.Fails(t, "a lease without a credential", err, ledger.ErrNotFound)
	login := oauthFor(t, k, storetest.Agent(1), "login")
	login.Access = &records.Access{Ciphertext: sealed(t, k, "came with it", login.AccessBinding())}
	storeToken(t, s, login)
	late(next)
	if found := begin(t, s, token, nil, false); found.Access == nil {
		t.Error("the access token that came with it is not there")
	} else {
		opens(t, k, found.Access.Ciphertext, found.Token.AccessBinding(), "came with it")
	}

	// It is replaced by a bearer token: there is nothing to renew, and nothing of the old credential is left.
	r = begin(t, s, token, login.Access.Ciphertext, true)
	storeToken(t, s, sealedFor(t, k, storetest.Agent(1), tokenOrigin, "bearer"))
	late(r)
	if found := begin(t, s, token, nil, false); found.Token.OAuth() || found.Access != nil {
		t.Errorf("%+v", found)
	}
	heraldtest.Equal(t, "access tokens are left",
		value[int](t, s, `SELECT count(*)::int FROM herald.agent_mcp_access`), 0)
	bearer := sealedFor(t, k, storetest.Agent(1), tokenOrigin, "x")
	for name, c := range map[string]struct {
		token  records.Token
		change func(*records.Token)
	}{
		"no issuer":                         {login, func(b *records.Token) { b.Issuer = "" }},
		"an issuer of a bearer token":       {bearer, func(b *records.Token) { b.Issuer = tokenIssuer }},
		"an access token in clear":          {login, func(b *records.Token) { b.Access = &records.Access{Ciphertext: []byte("in clear")} }},
		"an access token of a bearer token": {bearer, func(b *records.Token) { b.Access = login.Access }},
	} {
		c.change(&c.token)
		_, _, err := s.SetToken(t.Context(), c.token)
		heraldtest.Fails(t, name, err)
	}
}

// TestRenewalAtOnce: of many concurrent workers, one renews.
func TestRenewalAtOnce(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	token := oauthFor(t, k, storetest.Agent(1), "credential")
	storeToken(t, s, token)
	var wg sync.WaitGroup
	var given atomic.Int32
	for range 16 {
		wg.Go(func() {
			r, err := s.LeaseRenewal(t.Context(), token, nil, time.Minute)
			if err != nil {
				t.Error(err)
			} else if r.No != 0 {
				given.Add(1)
			}
		})
	}
	wg.Wait()
	heraldtest.Equal(t, "renewals", given.Load(), 1)
}

// TestRenewalSeesTheLastOne: a worker that waits for another's renewal reads the refresh token that this renewal
// stored, not the one before it.
func TestRenewalSeesTheLastOne(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	token := oauthFor(t, k, storetest.Agent(1), "old")
	storeToken(t, s, token)
	begin(t, s, token, nil, true)
	commit := holdOpen(t, s, `WITH renewed AS (UPDATE herald.agent_mcp_access SET renewing_until = NULL, key_id = 1)
		UPDATE herald.agent_mcp_tokens SET ciphertext = $1`, sealed(t, k, "new", token.Binding()))
	result := make(chan records.Renewal, 1)
	go func() {
		r, err := s.LeaseRenewal(t.Context(), token, nil, time.Minute)
		if err != nil {
			t.Error(err)
		}
		result <- r
	}()
	heraldtest.Await(t, "it waits for the lock", func() bool {
		return value[int](t, s, `SELECT count(*)::int FROM pg_locks WHERE NOT granted`) > 0
	})
	commit()
	r := <-result
	if r.No == 0 {
		t.Fatalf("%+v", r)
	}
	opens(t, k, r.Token.Ciphertext, r.Token.Binding(), "new")
}

// TestCredentialReplacedDuringFirstLease: a credential is stored while a worker begins the first renewal of the one
// before. The credential is stored nevertheless, and its own first renewal need not wait for the end of that lease.
func TestCredentialReplacedDuringFirstLease(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	for _, access := range []bool{true, false} {
		t.Run(fmt.Sprintf("with an access token: %t", access), func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			old := oauthFor(t, k, storetest.Agent(1), "old")
			storeToken(t, s, old)
			commit := holdOpen(t, s, records.Statements.Text("lease_renewal"), old.ChainID, old.Registry, old.ID, old.Origin, time.Minute, nil)
			login := oauthFor(t, k, storetest.Agent(1), "login")
			if access {
				login.Access = &records.Access{Ciphertext: sealed(t, k, "came with it", login.AccessBinding())}
			}
			result := make(chan error, 1)
			go func() {
				_, _, err := s.SetToken(t.Context(), login)
				result <- err
			}()
			heraldtest.Await(t, "it waits for the lock, or ends", func() bool {
				return len(result) > 0 || value[int](t, s, `SELECT count(*)::int FROM pg_locks WHERE NOT granted`) > 0
			})
			commit()
			heraldtest.Must(t, <-result)
			var seen []byte
			if access {
				seen = login.Access.Ciphertext
			}
			opens(t, k, begin(t, s, login, seen, true).Token.Ciphertext, login.Binding(), "login")
		})
	}
}

// TestAccessPagesAndReseal: access tokens are reencrypted like credentials, unless they were renewed in the meantime.
func TestAccessPagesAndReseal(t *testing.T) {
	t.Parallel()
	s, k := newStore(t), newKeys(t)
	for i := range 3 {
		token := oauthFor(t, k, storetest.Agent(i), "credential")
		token.Access = &records.Access{Ciphertext: sealed(t, k, fmt.Sprint("access ", i), token.AccessBinding())}
		if i == 1 {
			token.Access = nil
		}
		storeToken(t, s, token)
	}
	begin(t, s, oauthFor(t, k, storetest.Agent(1), ""), nil, true) // a row without an access token
	list, err := s.AccessAfter(t.Context(), nil)
	if err != nil || len(list) != 2 || list[0].ID != "0" || list[1].ID != "2" {
		t.Fatal(list, err)
	}
	opens(t, k, list[1].Access.Ciphertext, list[1].AccessBinding(), "access 2")
	rest, err := s.AccessAfter(t.Context(), &list[0])
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "the rest", rest, list[1:])
	other := newKeys(t)
	again := sealed(t, other, "access 0", list[0].AccessBinding())
	for _, want := range []string{"true <nil>", "false <nil>"} {
		heraldtest.Equal(t, "the token was replaced", fmt.Sprint(s.ResealAccess(t.Context(), list[0], again)), want)
	}
	key := value[int64](t, s, `SELECT key_id FROM herald.agent_mcp_access WHERE agent_id = 0`)
	heraldtest.Equal(t, "the key", uint32(key), other.PrimaryID())
	_, err = s.ResealAccess(t.Context(), list[1], []byte("in clear"))
	heraldtest.Fails(t, "an access token in clear", err)
}
