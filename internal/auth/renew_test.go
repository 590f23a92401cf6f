package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const (
	renewOrigin = "https://agent.example"
	renewIssuer = "https://login.example"
)

// renewals is an in-memory RenewalRecords for one credential, with a clock.
type renewals struct {
	TokenRecords // not asked
	Ledger       // not asked
	*heraldtest.Clock
	mu      sync.Mutex
	token   records.Token
	access  *records.Access
	no      int64
	until   time.Time // of the lease
	leases  int       // asked for
	leasing func()    // when one was
	saving  func()
	err     error // of saving
}

func (l *renewals) AgentTokens(context.Context, erc8004.Agent) ([]records.Token, bool, error) {
	return []records.Token{l.token}, false, nil
}

func (l *renewals) LeaseRenewal(_ context.Context, _ records.Token, seen []byte, lease time.Duration) (records.Renewal, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases++
	r := records.Renewal{Token: l.token}
	var now []byte
	if l.access != nil {
		a := *l.access
		r.Access, now = &a, a.Ciphertext
	}
	if lease > 0 && !l.Now().Before(l.until) && bytes.Equal(now, seen) {
		l.no++
		r.No, l.until = l.no, l.Now().Add(lease)
	}
	if l.leasing != nil {
		l.leasing()
	}
	return r, nil
}

func (l *renewals) SaveRenewal(_ context.Context, r records.Renewal, a records.Access, credential []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.saving != nil {
		l.saving()
	}
	switch {
	case l.err != nil:
		return l.err
	case r.No != l.no || !r.Token.UpdatedAt.Equal(l.token.UpdatedAt):
		return records.ErrSuperseded
	}
	l.access, l.until = &a, time.Time{}
	if credential != nil {
		l.token.Ciphertext = credential
	}
	return nil
}

func (l *renewals) YieldRenewal(_ context.Context, r records.Renewal) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.No == l.no {
		l.until = time.Time{}
	}
	return nil
}

// authority is an authorization server that issues numbered tokens.
type authority struct {
	mu       sync.Mutex
	clock    func() time.Time
	life     time.Duration
	fault    error
	asked    []oauth.Credential
	scopes   []string
	looked   int // number of Resource calls
	resource oauth.Resource
	rotate   bool
	before   func() // called before Obtain answers

	noDocument error
	looking    func() // called by Resource
}

func (a *authority) Resource(_ context.Context, _ string, _ oauth.Challenge) (oauth.Resource, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looked++
	if a.looking != nil {
		a.looking()
	}
	return a.resource, a.noDocument
}

func (a *authority) ServerOf(_ context.Context, r oauth.Resource, issuer string) (oauth.Server, error) {
	for _, i := range r.Issuers {
		if i == issuer {
			return oauth.Server{Issuer: issuer, TokenEndpoint: issuer + "/token"}, nil
		}
	}
	return oauth.Server{}, &oauth.IssuerError{Pinned: issuer, Named: r.Issuers}
}

func (a *authority) Obtain(_ context.Context, _ oauth.Server, c oauth.Credential, scope string) (oauth.Token, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.before != nil {
		a.before()
	}
	a.asked, a.scopes = append(a.asked, c), append(a.scopes, scope)
	if a.fault != nil {
		return oauth.Token{}, a.fault
	}
	t := oauth.Token{Access: secret.New(fmt.Sprint("access-", len(a.asked))), Scope: scope}
	if a.life > 0 {
		t.Expires = a.clock().Add(a.life)
	}
	if a.rotate {
		t.Refresh = secret.New(fmt.Sprint("refresh-", len(a.asked)))
	}
	return t, nil
}

func (a *authority) failWith(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = err
}

func (a *authority) countRequests() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked)
}

// renewing combines the ledger, the authorization server, the keys and the log that a worker uses.
type renewing struct {
	*renewals
	*authority
	keys  *secret.Keyset
	ticks chan time.Time
	log   *heraldtest.Log
}

func newRenewing(t testing.TB, cred oauth.Credential) *renewing {
	t.Helper()
	w := &renewing{renewals: &renewals{Clock: heraldtest.NewClock(time.Unix(1_800_000_000, 0))}, keys: must(secret.Create()), ticks: make(chan time.Time), log: &heraldtest.Log{}}
	w.authority = &authority{clock: w.Now, life: time.Hour, resource: oauth.Resource{URL: renewOrigin + "/mcp", Issuers: []string{renewIssuer}}}
	w.replaceCredential(cred)
	return w
}

// clientOf returns the credential of a client with a secret.
func clientOf(scope string) oauth.Credential {
	return oauth.Credential{Grant: oauth.GrantClientCredentials, ClientID: "herald", Method: oauth.MethodBasic, Secret: secret.New("client-secret"),
		Resource: renewOrigin + "/mcp", Scope: scope}
}

// loginOf returns the credential that a login stored.
func loginOf(refresh string) oauth.Credential {
	return oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: "herald", Method: oauth.MethodNone, RefreshToken: secret.New(refresh), Resource: renewOrigin + "/mcp"}
}

// replaceCredential stores a new credential.
func (w *renewing) replaceCredential(cred oauth.Credential) {
	w.renewals.mu.Lock()
	defer w.renewals.mu.Unlock()
	t := records.Token{Agent: erc8004.Agent{ChainID: 1, Registry: "0xaa", ID: "7"}, Origin: renewOrigin, Scheme: records.SchemeClientCredentials,
		Header: "Authorization", Issuer: renewIssuer, UpdatedAt: w.token.UpdatedAt.Add(time.Second)}
	if cred.Grant == oauth.GrantRefreshToken {
		t.Scheme = records.SchemeAuthorizationCode
	}
	t.Ciphertext = must(w.keys.Seal(must(cred.Marshal()), t.Binding()))
	w.token, w.access, w.until = t, nil, time.Time{}
}

func (w *renewing) newWorker() *Authorizer {
	return must(New(Config{Ledger: w.renewals, Records: w.renewals, Keys: w.keys, Classify: classify.Error, OAuth: w.authority,
		Ticks: w.ticks, Now: w.Now, SaveTimeout: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(w.log, nil))}))
}

// tokenRequest is one for the credential as it is stored now.
func (w *renewing) tokenRequest() tokenRequest {
	w.renewals.mu.Lock()
	defer w.renewals.mu.Unlock()
	return tokenRequest{token: w.token, url: renewOrigin + "/mcp"}
}

// refusedRequest is a tokenRequest after the agent refused an access token.
func (w *renewing) refusedRequest(access string) tokenRequest {
	e := w.tokenRequest()
	e.refused = secret.New("Bearer " + access)
	return e
}

// wantSent checks the token that r sends, and the number of requests to the authorization server so far.
func (w *renewing) wantSent(t testing.TB, r *Authorizer, e tokenRequest, want string, asked int) {
	t.Helper()
	got, err := r.bearerHeader(t.Context(), e)
	if err != nil || got.Reveal() != "Bearer "+want || w.countRequests() != asked {
		t.Fatalf("%q, %v, after %d requests; want %q after %d", got.Reveal(), err, w.countRequests(), want, asked)
	}
}

func (w *renewing) wantFailure(t testing.TB, r *Authorizer, e tokenRequest, why outcome.Reason, says string, asked int) outcome.Verdict {
	t.Helper()
	got, err := r.bearerHeader(t.Context(), e)
	if err == nil {
		t.Fatalf("it sends %q", got.Reveal())
	}
	v := classify.Error(err)
	if v.Reason != why || !strings.Contains(v.Text, says) || w.countRequests() != asked || v.Moved || v.Unwell {
		t.Fatalf("%+v after %d requests; want %s, %q after %d", v, w.countRequests(), why, says, asked)
	}
	return v
}

// TestDue checks that a token is due after 80 % of its life or 60 s before its end, whichever is earlier, but not in
// the first half of its life.
func TestDue(t *testing.T) {
	t.Parallel()
	since := time.Unix(1_800_000_000, 0)
	for life, want := range map[time.Duration]time.Duration{
		time.Hour: 48 * time.Minute, 5 * time.Minute: 4 * time.Minute, 4 * time.Minute: 3 * time.Minute, 2 * time.Minute: time.Minute,
		time.Minute: 30 * time.Second, 2 * time.Second: 5 * time.Second, 0: 5 * time.Second,
	} {
		a := &accessToken{since: since, until: since.Add(life)}
		if a.needsRefresh(since.Add(want-1)) || !a.needsRefresh(since.Add(want)) {
			t.Errorf("a life of %s is not renewed after %s", life, want)
		}
	}
	if (&accessToken{since: since}).needsRefresh(since.Add(1000 * time.Hour)) {
		t.Error("one without an end is renewed")
	}
}

// TestRenewalAhead checks that an access token is used until it is due and then renewed. If the renewal fails, the old
// token is sent while it is valid.
func TestRenewalAhead(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("feedback"))
	r := w.newWorker()
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	w.Advance(47 * time.Minute)
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	w.Advance(time.Minute)
	w.authority.failWith(&oauth.UnavailableError{Host: "login.example", Status: 503, Err: errors.New("HTTP 503"), RetryAfter: 2 * time.Minute})
	w.wantSent(t, r, w.tokenRequest(), "access-1", 2)
	heraldtest.Contains(t, "the log", w.log.String(), "the old one is sent until it ends")
	heraldtest.Lacks(t, "the log", w.log.String(), "access-1")
	w.wantSent(t, r, w.tokenRequest(), "access-1", 2) // not asked again so soon
	w.Advance(2 * time.Minute)
	w.wantSent(t, r, w.tokenRequest(), "access-1", 3)
	w.Advance(11 * time.Minute) // it has ended
	v := w.wantFailure(t, r, w.tokenRequest(), outcome.ServerError, "no access token for https://agent.example from https://login.example: login.example gives no usable answer: HTTP 503", 4)
	heraldtest.Equal(t, "the retry", v.RetryAfter, 2*time.Minute)
	v = w.wantFailure(t, r, w.tokenRequest(), outcome.ServerError, "(asked 0s ago, and not again for 2m0s)", 4)
	heraldtest.Equal(t, "the retry", v.RetryAfter, 2*time.Minute)
	w.Advance(2 * time.Minute)
	w.authority.failWith(nil)
	w.wantSent(t, r, w.tokenRequest(), "access-5", 5)

	// Another worker uses the stored token.
	w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-5", 5)
	// A token without an expiry is sent until it is refused.
	w.life = 0
	w.replaceCredential(clientOf("feedback"))
	w.wantSent(t, r, w.tokenRequest(), "access-6", 6)
	w.Advance(1000 * time.Hour)
	w.wantSent(t, r, w.tokenRequest(), "access-6", 6)
}

// TestOneRenews checks that only one of many deliveries in several workers asks the authorization server.
func TestOneRenews(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("feedback"))
	stop := make(chan struct{})
	var pump, wg sync.WaitGroup
	pump.Go(func() {
		for {
			select {
			case w.ticks <- time.Time{}:
			case <-stop:
				return
			}
		}
	})
	workers := []*Authorizer{w.newWorker(), w.newWorker(), w.newWorker()}
	round := func(e tokenRequest, want string) {
		t.Helper()
		for i := range 48 {
			wg.Go(func() {
				got, err := workers[i%3].bearerHeader(t.Context(), e)
				if err != nil || got.Reveal() != want {
					t.Errorf("%q, %v; want %q", got.Reveal(), err, want)
				}
			})
		}
		wg.Wait()
	}
	e := w.tokenRequest()
	round(e, "Bearer access-1")
	// The agent refuses all of them.
	e.refused = secret.New("Bearer access-1")
	for _, r := range workers {
		r.invalidateToken(e)
	}
	round(e, "Bearer access-2")
	round(w.tokenRequest(), "Bearer access-2")
	heraldtest.Equal(t, "token requests", w.countRequests(), 2)
	close(stop)
	pump.Wait()
}

// TestOneFlight checks that in one process, other deliveries wait for the renewal in flight and do not query the store.
func TestOneFlight(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("feedback"))
	r, e := w.newWorker(), w.tokenRequest()
	const many = 48
	var under atomic.Int32
	w.before = func() {
		for under.Load() < many {
			runtime.Gosched()
		}
	}
	var wg sync.WaitGroup
	for range many {
		wg.Go(func() {
			under.Add(1)
			if got, err := r.bearerHeader(t.Context(), e); err != nil || got.Reveal() != "Bearer access-1" {
				t.Errorf("%q, %v", got.Reveal(), err)
			}
		})
	}
	wg.Wait()
	heraldtest.Equal(t, "leases", w.leases, 1)
}

// TestAnotherWorkerRenews checks that a worker waits for another worker's renewal, takes it over when that worker dies,
// and returns an error when it takes too long.
func TestAnotherWorkerRenews(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("feedback"))
	r := w.newWorker()
	lease := must(w.LeaseRenewal(t.Context(), w.token, nil, time.Minute)) // held by the other worker
	_, err := r.bearerHeader(heraldtest.Within(t, time.Second), w.tokenRequest())
	if v := classify.Error(err); v.Reason != outcome.ConnectFailed || v.Moved || v.Unwell || !strings.Contains(v.Text, "another worker asks it") {
		t.Fatalf("%+v", v)
	}
	got := make(chan string, 1)
	wait := func() {
		go func() {
			value, err := r.bearerHeader(context.WithoutCancel(t.Context()), w.tokenRequest())
			got <- fmt.Sprint(value.Reveal(), err)
		}()
		w.ticks <- time.Time{} // received by the waiting renewal
	}
	wait()
	a := must(SealAccess(w.keys, w.token, oauth.Token{Access: secret.New("the other's")}, w.Now()))
	must(0, w.SaveRenewal(t.Context(), lease, *a, nil))
	if text := w.tickUntil(t, got); text != "Bearer the other's<nil>" || w.countRequests() != 0 {
		t.Errorf("%s after %d requests", text, w.countRequests())
	}
	// The other worker dies.
	w.replaceCredential(clientOf("feedback"))
	must(w.LeaseRenewal(t.Context(), w.token, nil, time.Minute))
	wait()
	w.Advance(2 * time.Minute)
	if text := w.tickUntil(t, got); text != "Bearer access-1<nil>" || w.countRequests() != 1 {
		t.Errorf("%s after %d requests", text, w.countRequests())
	}
	// While there is a good one, no caller waits.
	w.Advance(50 * time.Minute)
	must(w.LeaseRenewal(t.Context(), w.token, w.access.Ciphertext, time.Minute))
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
}

// tickUntil makes the waiting renewal poll again until there is a result.
func (w *renewing) tickUntil(t testing.TB, got <-chan string) string {
	t.Helper()
	for end := time.After(30 * time.Second); ; {
		select {
		case w.ticks <- time.Time{}:
		case text := <-got:
			return text
		case <-end:
			t.Fatal("not within 30 s")
		}
	}
}

// TestRefusedCredential checks that a credential that the authorization server refuses is not tried again with every
// delivery. It is tried again by hand, after the credential was replaced, or after Patience.
func TestRefusedCredential(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("feedback"))
	r := w.newWorker()
	w.authority.failWith(&oauth.RefusedError{Status: 401, Code: "invalid_client", Description: "who?"})
	w.wantFailure(t, r, w.tokenRequest(), outcome.AuthRequired, `no access token for https://agent.example: https://login.example refuses: invalid_client ("who?"), HTTP 401. It does not know the client, or not by this secret or key: store the right one, `+"`worker token set 1:7 --origin https://agent.example", 1)
	e := w.tokenRequest()
	e.insist = true
	w.wantFailure(t, r, e, outcome.AuthRequired, "(asked 0s ago", 1) // not with each of many
	w.Advance(time.Minute)
	w.wantFailure(t, r, w.tokenRequest(), outcome.AuthRequired, "(asked 1m0s ago, and not again for 9m0s)", 1)
	w.wantFailure(t, r, e, outcome.AuthRequired, "invalid_client", 2)
	w.replaceCredential(clientOf("other"))
	w.wantFailure(t, r, w.tokenRequest(), outcome.AuthRequired, "invalid_client", 3)
	w.Advance(10 * time.Minute)
	w.wantFailure(t, r, w.tokenRequest(), outcome.AuthRequired, "invalid_client", 4)
	// Another worker succeeds, and this worker uses its token.
	w.authority.failWith(nil)
	w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-5", 5)
	w.wantSent(t, r, w.tokenRequest(), "access-5", 5)
	// A token that the agent refused is not sent again, even if no other is available.
	e = w.tokenRequest()
	e.refused = secret.New("Bearer access-5")
	r.invalidateToken(e)
	w.authority.failWith(&oauth.RefusedError{Status: 401, Code: "invalid_client"})
	w.wantFailure(t, r, e, outcome.AuthRequired, "invalid_client", 6)
	w.wantFailure(t, r, w.tokenRequest(), outcome.AuthRequired, "not again for", 6)

	for code, says := range map[string]string{
		"invalid_grant": "log in again, `worker token login 1:7`", "unauthorized_client": "ask its operator to allow that", "invalid_scope": "--scope",
		"invalid_target": "--resource", "access_denied": "denies", "unsupported_token_type": "Bearer", "": "ask its operator for the cause",
	} {
		w.replaceCredential(loginOf("refresh-0"))
		w.authority.failWith(&oauth.RefusedError{Status: 400, Code: code})
		w.wantFailure(t, r, w.tokenRequest(), outcome.AuthRequired, says, w.countRequests()+1)
	}
	for err, want := range map[error]outcome.Reason{
		&oauth.UnavailableError{Err: errors.New("refused")}:              outcome.ConnectFailed,
		&oauth.UnavailableError{Err: context.DeadlineExceeded}:           outcome.Timeout,
		&oauth.UnavailableError{Status: 429, Err: errors.New("HTTP")}:    outcome.RateLimited,
		&oauth.UnavailableError{Status: 200, Err: errors.New("endless")}: outcome.ServerError,
		&oauth.MetadataError{URL: "x", Problem: "it is no JSON"}:         outcome.AuthRequired,
		&oauth.UnavailableError{Err: &netguard.BlockedError{}}:           outcome.AuthRequired,
	} {
		w.replaceCredential(loginOf("refresh-0"))
		w.authority.failWith(err)
		w.wantFailure(t, r, w.tokenRequest(), want, "", w.countRequests()+1)
	}
}

// TestFreshRefused checks that a fresh access token that the agent refuses is replaced after growing pauses, during
// which the authorization server is not asked. After the fourth refusal in succession, the error is auth_required. An
// accepted call or a new credential resets the count.
func TestFreshRefused(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("feedback"))
	r := w.newWorker()
	r.RefusedPause = 2 * time.Second
	refused := func(n int, why outcome.Reason, says string, pause time.Duration) tokenRequest {
		t.Helper()
		e := w.tokenRequest()
		e.refused, e.says = secret.New(fmt.Sprint("Bearer access-", n)), oauth.Challenge{Error: "invalid_token"}
		v := classify.Error(r.rejectFresh(e))
		if v.Reason != why || !strings.Contains(v.Text, says) || v.RetryAfter != pause || v.Moved || v.Unwell || v.AgentFault || v.Unknown {
			t.Fatalf("%+v; want %s, %q, after %s", v, why, says, pause)
		}
		return e
	}
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	for i, pause := range []time.Duration{2 * time.Second, 8 * time.Second, 32 * time.Second} {
		e := refused(i+1, outcome.ServerError, "another one is asked for in "+pause.String(), pause)
		refused(i+1, outcome.ServerError, "and not again for", pause) // another delivery sent the same token
		heraldtest.Equal(t, "the refusal is remembered", r.refusesFresh(e), true)
		w.Advance(pause - time.Second)
		w.wantFailure(t, r, w.tokenRequest(), outcome.ServerError, "not again for 1s", i+1)
		w.Advance(time.Second)
		w.wantSent(t, r, w.tokenRequest(), fmt.Sprint("access-", i+2), i+2)
	}
	refused(4, outcome.AuthRequired, "the agent refused each of the last 4 access tokens as soon as https://login.example had given it (HTTP 401, invalid_token): ask its author", 0)
	w.wantFailure(t, r, w.tokenRequest(), outcome.AuthRequired, "not again for 10m0s", 4)
	w.Advance(10 * time.Minute)
	w.wantSent(t, r, w.tokenRequest(), "access-5", 5)
	refused(5, outcome.AuthRequired, "the last 5 access tokens", 0)
	w.Advance(10 * time.Minute)
	w.wantSent(t, r, w.tokenRequest(), "access-6", 6)
	r.acceptFresh(w.tokenRequest().audience())
	refused(6, outcome.ServerError, "in 2s", 2*time.Second)
	w.replaceCredential(clientOf("other"))
	e := w.tokenRequest()
	if e.refused = secret.New("Bearer access-6"); r.refusesFresh(e) {
		t.Error("another credential is blamed")
	}
}

// TestFreshAccessToken checks that an access token counts as fresh if it replaced a refused one, until the agent
// accepts it.
func TestFreshAccessToken(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("feedback"))
	r := w.newWorker()
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	first := w.refusedRequest("access-1")
	heraldtest.Equal(t, "fresh before it was refused", r.refusesFresh(first), false)
	r.replaceRefused(first)
	heraldtest.Equal(t, "fresh before another one was requested", r.refusesFresh(first), false)
	w.wantSent(t, r, first, "access-2", 2)
	second := w.refusedRequest("access-2")
	if r.refusesFresh(first) || !r.refusesFresh(second) {
		t.Error("not the one that took its place:", r.refusesFresh(first), r.refusesFresh(second))
	}
	r.acceptFresh(second.audience())
	heraldtest.Equal(t, "fresh after the agent accepted it", r.refusesFresh(second), false)
}

// TestRotatedRefreshToken checks that the newest refresh token is used, even if it could not be stored.
func TestRotatedRefreshToken(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, loginOf("refresh-0"))
	w.rotate = true
	r := w.newWorker()
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	e := w.refusedRequest("access-1")
	r.invalidateToken(e)
	w.wantSent(t, w.newWorker(), e, "access-2", 2)
	e.refused = secret.New("Bearer access-2")
	w.err = errors.New("Postgres is away")
	w.wantSent(t, r, e, "access-3", 3)
	heraldtest.Contains(t, "the log", w.log.String(), "could not be stored")
	w.err = nil
	w.Advance(2 * time.Hour) // the lease ends, and the token
	w.wantSent(t, r, e, "access-4", 4)
	for i, c := range w.asked {
		if want := fmt.Sprint("refresh-", i); c.RefreshToken.Reveal() != want || w.scopes[i] != "" {
			t.Errorf("request %d came with %s and scope %q", i, c.RefreshToken.Reveal(), w.scopes[i])
		}
	}
	heraldtest.Lacks(t, "the log", w.log.String(), "refresh-", "access-")
}

// TestRenewalIsStoredLater checks that a renewal that could not be stored is stored with the next delivery, or by flush
// before the process ends.
func TestRenewalIsStoredLater(t *testing.T) {
	t.Parallel()
	for _, flush := range []bool{false, true} {
		w := newRenewing(t, loginOf("refresh-0"))
		w.rotate = true
		w.err = errors.New("Postgres is away")
		r := w.newWorker()
		w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
		w.wantSent(t, r, w.tokenRequest(), "access-1", 1) // the store is still unavailable
		r.Flush(t.Context())
		heraldtest.Contains(t, "the log", w.log.String(), "is lost with this process")
		w.err = nil
		if flush {
			r.Flush(t.Context())
		} else {
			w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
		}
		w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-1", 1)
		w.Advance(time.Hour)
		w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-2", 2)
		heraldtest.Equal(t, "it asks with", w.asked[1].RefreshToken.Reveal(), "refresh-1")
	}
	// A newer credential is not overwritten.
	w := newRenewing(t, loginOf("refresh-0"))
	w.rotate, w.err = true, errors.New("Postgres is away")
	r := w.newWorker()
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	w.err = nil
	w.replaceCredential(loginOf("refresh-9"))
	r.Flush(t.Context())
	w.wantSent(t, r, w.tokenRequest(), "access-2", 2)
	heraldtest.Equal(t, "it asks with", w.asked[1].RefreshToken.Reveal(), "refresh-9")
}

// TestCostsOfWaiting checks that deliveries that wait for the requests of another one, or of another worker, pay for the
// time of these requests, but not for that of the store.
func TestCostsOfWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRenewing(t, clientOf("feedback"))
		r, e := w.newWorker(), w.tokenRequest()
		r.Now = time.Now
		w.leasing, w.before = func() { time.Sleep(3 * time.Second) }, func() { time.Sleep(10 * time.Second) }
		w.saving = w.leasing
		var asked [3]time.Duration
		var wg sync.WaitGroup
		for i := range asked {
			wg.Go(func() { must(r.bearerHeader(WithCosts(t.Context(), &asked[i]), e)) })
		}
		wg.Wait()
		heraldtest.Equal(t, "costs of three at once", asked, [3]time.Duration{10 * time.Second, 10 * time.Second, 10 * time.Second})

		w.leasing = nil
		w.replaceCredential(clientOf("other"))
		must(w.LeaseRenewal(t.Context(), w.token, nil, time.Hour))
		asked[0], r.Ticks = 0, nil
		if _, err := r.bearerHeader(WithCosts(t.Context(), &asked[0]), w.tokenRequest()); err == nil || asked[0] < renewTimeout-renewTick {
			t.Errorf("waiting for another worker costs %s, %v", asked[0], err)
		}
	})
}

// TestJoinsOnlyItsRenewal checks that a delivery does not get the failure of a renewal in flight if the credential was
// replaced in between or if it requests more scope.
func TestJoinsOnlyItsRenewal(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *renewing, e *tokenRequest){
		"": func(*renewing, *tokenRequest) {},
		"another credential": func(w *renewing, e *tokenRequest) {
			w.replaceCredential(clientOf("new"))
			*e = w.tokenRequest()
		},
		"more scope": func(_ *renewing, e *tokenRequest) { e.narrow, e.says = true, oauth.Challenge{Scope: "all"} },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newRenewing(t, clientOf("all"))
			r, e := w.newWorker(), w.tokenRequest()
			_, f, _ := r.joinRenewal(e)
			change(w, &e)
			got := make(chan string, 1)
			go func() {
				value, err := r.bearerHeader(t.Context(), e)
				got <- fmt.Sprint(value.Reveal(), err)
			}()
			synctest.Wait() // until the delivery waits
			r.mu.Lock()
			delete(r.flights, e.audience())
			r.mu.Unlock()
			f.err = errors.New("of the other one")
			close(f.done)
			want := "Bearer access-1<nil>"
			if name == "" {
				want = "of the other one"
			}
			heraldtest.Equal(t, name, <-got, want)
		})
	}
}

// TestMoreScopeFails checks that an agent's challenge does not extend the stored scope, whether the operator named a
// scope or not. The failure does not affect requests for a token with the stored scope.
func TestMoreScopeFails(t *testing.T) {
	t.Parallel()
	for _, stored := range []string{"", "a"} {
		w := newRenewing(t, clientOf(stored))
		w.life = 5 * time.Minute
		r := w.newWorker()
		w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
		more := w.tokenRequest()
		more.refused, more.narrow, more.says = secret.New("Bearer access-1"), true, oauth.Challenge{Scope: "all"}
		says := fmt.Sprintf("wants more than the operator allowed: if it may have it, `worker token set 1:7 --origin https://agent.example --client-id …` --scope '%s'",
			strings.TrimSpace(stored+" all"))
		w.wantFailure(t, r, more, outcome.AuthRequired, says, 1)
		w.wantFailure(t, r, more, outcome.AuthRequired, "not again for 10m0s", 1)
		w.Advance(4 * time.Minute)
		w.wantSent(t, r, w.tokenRequest(), "access-2", 2)
		more.refused, more.says.Scope = secret.New("Bearer access-2"), "$(reboot)'"
		w.wantFailure(t, r, more, outcome.AuthRequired, "--client-id …` --scope …", 2)
	}
}

// TestDocumentKept checks that an agent which serves its metadata only to requests with a token does not count as
// naming another issuer. Metadata that is invalid, or that the challenge names, counts.
func TestDocumentKept(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("a"))
	r := w.newWorker()
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	e := w.refusedRequest("access-1")
	w.noDocument = &oauth.MetadataError{URL: "x", Problem: "it is wrong"}
	w.wantFailure(t, r, e, outcome.AuthRequired, "it is wrong. Once it is repaired, replay a delivery", 1)
	w.Advance(10 * time.Minute)
	w.noDocument = &oauth.MetadataError{URL: "x", Problem: "it is not given out", Denied: true}
	e.says.Metadata = "https://agent.example/named"
	w.wantFailure(t, r, e, outcome.AuthRequired, "it is not given out", 1)
	w.Advance(10 * time.Minute)
	e.says.Metadata = ""
	w.wantSent(t, r, e, "access-2", 2)
}

// TestLeaseOver checks that a renewal that exceeds its lease is restarted before the authorization server is asked,
// because another worker may ask it too.
func TestLeaseOver(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf(""))
	slow := []time.Duration{16 * time.Second, 0}
	w.looking = func() {
		w.Advance(slow[0])
		slow = slow[1:]
	}
	w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-1", 1)
	heraldtest.Equal(t, "documents that were read", w.looked, 2)
	heraldtest.Equal(t, "leases", w.no, 2)
}

// TestLeaseOverAfterSuspend checks that a worker whose machine was suspended during a renewal acquires its lease again,
// because another worker may have used the refresh token.
func TestLeaseOverAfterSuspend(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, loginOf("refresh-0"))
	r, now := w.newWorker(), time.Now()
	r.Now = func() time.Time { return now }
	w.authority.clock = r.Now
	resumed := heraldtest.ResumeAt(now, time.Minute)
	w.leasing = func() { now = resumed }
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	heraldtest.Equal(t, "leases", w.no, 2)
}

// TestStuckRenewal checks that only one delivery waits for another worker's renewal that does not end. Later ones fail
// at once.
func TestStuckRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRenewing(t, clientOf(""))
		r := w.newWorker()
		must(w.LeaseRenewal(t.Context(), w.token, nil, time.Hour))
		began := time.Now()
		w.wantFailure(t, r, w.tokenRequest(), outcome.ConnectFailed, "another worker asks it", 0)
		heraldtest.Equal(t, "it took", time.Since(began), renewTimeout)
		w.wantFailure(t, r, w.tokenRequest(), outcome.ConnectFailed, "not again for 10s", 0)
		heraldtest.Equal(t, "the second took", time.Since(began), renewTimeout)
	})
}

// TestStopped checks that a worker that is stopped while it acquires its lease releases it.
func TestStopped(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf(""))
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("the worker is stopped")
	w.leasing = func() { cancel(stopped) }
	_, err := w.newWorker().bearerHeader(ctx, w.tokenRequest())
	heraldtest.Fails(t, "a stopped worker", err, stopped)
	w.leasing = nil
	w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-1", 1)
}

// TestPauses checks that a failing server is asked at growing intervals while the access token is valid, and that one
// line is logged per attempt.
func TestPauses(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("a"))
	r := w.newWorker()
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	w.Advance(48 * time.Minute)
	w.authority.failWith(&oauth.UnavailableError{Err: errors.New("refused")})
	for range 600 { // one delivery per second
		_ = must(r.bearerHeader(t.Context(), w.tokenRequest()))
		if w.countRequests() > 1+6+600/30 {
			break
		}
		w.Advance(time.Second)
	}
	if n, lines := w.countRequests()-1, strings.Count(w.log.String(), "the old one is sent"); n > 6+600/30 || n < 600/60 || lines != n {
		t.Errorf("asked %d times in 10 minutes, %d lines", n, lines)
	}
	w.Advance(2 * time.Minute) // it has ended: now each of them matters
	w.wantFailure(t, r, w.tokenRequest(), outcome.ConnectFailed, "", w.countRequests()+1)
	e := w.tokenRequest()
	e.insist = true
	w.Advance(time.Minute)
	w.authority.failWith(&oauth.UnavailableError{Err: errors.New("refused"), RetryAfter: time.Minute})
	w.wantFailure(t, r, e, outcome.ConnectFailed, "", w.countRequests()+1)
	w.Advance(30 * time.Second)
	w.wantFailure(t, r, e, outcome.ConnectFailed, "not again for 30s", w.countRequests())
}

// TestReplacedWhileRenewed checks that a token obtained with a replaced credential is discarded.
func TestReplacedWhileRenewed(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("old"))
	w.before = func() {
		w.before = nil
		w.replaceCredential(clientOf("new"))
	}
	w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-2", 2)
	heraldtest.Equal(t, "the scope", w.scopes[1], "new")
}

// TestReplacedByAnotherPath checks that an access token of a new credential is not sent to the path of the one that it
// replaced: the operator allowed the new one for another path. It does not matter whether the new access token is
// requested now, or came with the credential, or was sent before.
func TestReplacedByAnotherPath(t *testing.T) {
	t.Parallel()
	for name, asked := range map[string]int{"requested now": 1, "in the store": 1, "in memory": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRenewing(t, clientOf("old"))
			w.token.Path = "/mcp"
			r, old := w.newWorker(), w.tokenRequest()
			w.replaceCredential(clientOf("new"))
			w.token.Path = "/other"
			next := w.tokenRequest()
			next.url = renewOrigin + "/other"
			switch name {
			case "in the store":
				w.wantSent(t, w.newWorker(), next, "access-1", 1)
			case "in memory":
				w.wantSent(t, r, next, "access-1", 1)
			}
			w.wantFailure(t, r, old, outcome.Throttled, "is just being replaced", asked)
			w.wantSent(t, r, next, "access-1", 1)
		})
	}
}

// TestScopes checks that a renewal requests the stored scope only, regardless of later challenges. A credential that an
// older version stored without a scope uses the scope of its last access token.
func TestScopes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		scope, last string
		supported   []string
		says        oauth.Challenge
		want        string
	}{
		"of the operator":            {scope: "a", supported: []string{"b"}, want: "a"},
		"none":                       {},
		"none, and the agent's":      {supported: []string{"b", "c"}},
		"none, and the challenge's":  {says: oauth.Challenge{Scope: "x"}},
		"no more than stored":        {scope: "a", says: oauth.Challenge{Scope: "x a"}, want: "a"},
		"of before":                  {last: "b", supported: []string{"c"}, says: oauth.Challenge{Scope: "x"}, want: "b"},
		"of before, and stored anew": {scope: "a", last: "b", want: "a"},
	} {
		w := newRenewing(t, clientOf(tt.scope))
		w.resource.Scopes = tt.supported
		if tt.last != "" {
			w.access = must(SealAccess(w.keys, w.token, oauth.Token{Access: secret.New("access-0"), Scope: tt.last, Expires: w.Now().Add(-time.Minute)}, w.Now().Add(-time.Hour)))
		}
		r := w.newWorker()
		w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
		e := w.tokenRequest()
		e.refused, e.says = secret.New("Bearer access-1"), tt.says
		w.wantSent(t, r, e, "access-2", 2)
		w.Advance(time.Hour)
		w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-3", 3)
		for _, scope := range w.scopes {
			heraldtest.Equal(t, name, scope, tt.want)
		}
	}
}

// TestIssuerNamedByAgent checks that the credential is not sent to a different authorization server that the agent
// names, and that an agent without metadata does not change the issuer.
func TestIssuerNamedByAgent(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("a"))
	r := w.newWorker()
	w.wantSent(t, r, w.tokenRequest(), "access-1", 1)
	e := w.refusedRequest("access-1")
	w.resource.Issuers = []string{"https://evil.example", "https://other.example"}
	w.wantFailure(t, r, e, outcome.AuthRequired, "its authorization server is https://evil.example or https://other.example now, and the credential is for https://login.example", 1)
	w.Advance(time.Hour)
	w.resource = oauth.Resource{URL: "https://agent.example/mcp", Issuers: []string{renewOrigin}, Legacy: true}
	w.wantSent(t, r, e, "access-2", 2)
	cred := clientOf("a")
	cred.Resource = ""
	w.replaceCredential(cred)
	w.wantSent(t, r, w.tokenRequest(), "access-3", 3)
	heraldtest.Equal(t, "the resource", w.asked[2].Resource, "https://agent.example/mcp")
}

// TestUnreadable checks that an access token that cannot be decrypted is requested again, and that a delivery with such
// a credential is held.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	w := newRenewing(t, clientOf("a"))
	w.access = &records.Access{Ciphertext: []byte("damaged")}
	w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-1", 1)
	moved := w.token
	moved.Origin = "https://elsewhere.example"
	w.access = must(SealAccess(w.keys, moved, oauth.Token{Access: secret.New("elsewhere's")}, w.Now()))
	w.wantSent(t, w.newWorker(), w.tokenRequest(), "access-2", 2)
	w.token.Issuer = "https://evil.example"
	w.wantFailure(t, w.newWorker(), w.tokenRequest(), outcome.AuthRequired, "the credential stored for https://agent.example: stored secret: it was sealed for another", 2)
	w.replaceCredential(clientOf("a"))
	w.token.Ciphertext = must(w.keys.Seal([]byte(`{"grant":"magic"}`), w.token.Binding()))
	w.wantFailure(t, w.newWorker(), w.tokenRequest(), outcome.AuthRequired, "the credential stored for https://agent.example cannot be used (", 2)
}
