package agentauth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	lru "github.com/hashicorp/golang-lru/v2"
)

// Authority is the OAuth client as renewals need it (package oauth).
type Authority interface {
	Resource(ctx context.Context, mcpURL string, ch oauth.Challenge) (oauth.Resource, error)
	ServerOf(ctx context.Context, r oauth.Resource, issuer string) (oauth.Server, error)
	Obtain(ctx context.Context, s oauth.Server, c oauth.Credential, scope string) (oauth.Token, error)
}

// RenewalLedger is the store as renewals need it.
type RenewalLedger interface {
	LeaseRenewal(ctx context.Context, t store.Token, seen []byte, lease time.Duration) (store.Renewal, error)
	SaveRenewal(ctx context.Context, r store.Renewal, a store.Access, credential []byte) error
	YieldRenewal(ctx context.Context, r store.Renewal) error
}

// A renewal is one worker's until its lease ends, so it must end before: finding the authorization server, asking it,
// saving.
const (
	renewLease   = 30 * time.Second
	findTimeout  = 12 * time.Second
	askTimeout   = 10 * time.Second
	saveTimeout  = 5 * time.Second
	renewTimeout = renewLease + findTimeout // of waiting for another worker's and then doing it
	renewTick    = 100 * time.Millisecond
	dueFirst     = 5 * time.Second
	awayPause    = 500 * time.Millisecond // least time that an authorization server which gave no usable answer is left alone
	awayShare    = 4                      // and as many times as long as it took to say so
	awayMost     = 30 * time.Second       // to which it grows while there is a good access token
	stuckPause   = 10 * time.Second       // after another worker's renewal did not come to an end
	insistAfter  = 5 * time.Second        // who asks by hand is not faster than this
)

// renewer keeps the access tokens of OAuth credentials: in memory, and for all workers in the store, where one at a
// time renews each.
type renewer struct {
	Config
	known  *lru.Cache[audience, *accessToken]
	failed *lru.Cache[failureKey, failedRenewal]
	// refusals counts the fresh access tokens in a row that an agent refused; a call that it takes ends the row.
	refusals *lru.Cache[audience, freshRefusals]

	mu      sync.Mutex // flights, refusals
	flights map[audience]*flight
}

// audience is whom an access token is for.
type audience struct {
	agent  store.Agent
	origin netguard.CredentialOrigin
}

// tokenRequest is what an access token is wanted for.
type tokenRequest struct {
	token   store.Token     // the credential, as it was read
	url     string          // of the agent's endpoint
	refused secret.Secret   // the header that the agent refused; zero: none was sent
	says    oauth.Challenge // what it said to that
	narrow  bool            // it would take another one with more scope, and this one for something else
	insist  bool            // what failed a moment ago is tried again
}

func (e tokenRequest) audience() audience { return audience{e.token.Agent, e.token.Origin} }

// failureKey is what failures are remembered for: that there is no access token with more scope says nothing of the one
// with less.
type failureKey struct {
	audience
	more string
}

func (e tokenRequest) failureKey() failureKey {
	m := failureKey{audience: e.audience()}
	if e.narrow {
		m.more = "more: " + e.says.Scope
	}
	return m
}

// accessToken is an access token and what is known of it. It is never changed; nil is none.
type accessToken struct {
	stored  time.Time     // when the credential was stored that it was had for (store.Token.UpdatedAt)
	sealed  []byte        // as it is in the store, be it good or not; nil: it is not there
	value   secret.Secret // of the header; zero: it does not open
	scope   string        // that was asked for
	since   time.Time
	until   time.Time // zero: the authorization server did not say
	invalid bool      // the agent does not take it any more
	unsaved *unsaved  // what the store could not be given; nil: it has all
}

// unsaved is a renewal whose saving failed.
type unsaved struct {
	renewal    store.Renewal
	access     store.Access
	credential []byte // sealed with another refresh token; nil: that stayed

	spool     *secret.Binding // of what Redis is given; nil: nothing
	spoolText []byte          // sealed
	spooled   atomic.Bool     // Redis has it
}

// usable tells whether it can be sent.
func (a *accessToken) usable(e tokenRequest, now time.Time) bool {
	return a != nil && !a.invalid && !a.value.IsZero() && (a.until.IsZero() || now.Before(a.until)) &&
		(e.refused.IsZero() || !a.value.Compare(e.refused.Reveal()))
}

// needsRefresh tells whether it is time for another one, ahead of its end: after 80 % of its life or 60 s before its
// end, whatever is earlier, but not before half of it is over, nor in its first seconds: some servers give the same one
// again until it ends. Or to have the store take it.
func (a *accessToken) needsRefresh(now time.Time) bool {
	if a.unsaved != nil || a.until.IsZero() {
		return a.unsaved != nil
	}
	life := a.until.Sub(a.since)
	return now.Sub(a.since) >= max(min(life*8/10, life-time.Minute), life/2, dueFirst)
}

// failedRenewal is remembered, so that it is not tried with every delivery.
type failedRenewal struct {
	stored time.Time // of the credential
	at     time.Time
	pause  time.Duration
	err    error
}

// flight is one renewal of this process, which all who need it wait for.
type flight struct {
	stored time.Time // of the credential that it is for
	key    failureKey
	done   chan struct{}
	err    error // set before done is closed
}

func newRenewer(cfg Config) *renewer {
	return &renewer{
		Config:   cfg,
		flights:  map[audience]*flight{},
		known:    newCache[audience, *accessToken](cfg.Entries),
		failed:   newCache[failureKey, failedRenewal](cfg.Entries),
		refusals: newCache[audience, freshRefusals](cfg.Entries),
	}
}

// bearerHeader is the value of the Authorization header for a tokenRequest.
func (r *renewer) bearerHeader(ctx context.Context, e tokenRequest) (value secret.Secret, err error) {
	if r == nil {
		return value, retry.Fail(reason.AuthRequired,
			fmt.Sprintf("the credential stored for %s is an OAuth one, and nobody here can get access tokens",
				e.token.Origin))
	}
	a, err := r.currentToken(ctx, e)
	if err != nil {
		return value, err
	}
	return a.value, nil
}

// invalidate notes that the agent refused an access token as such: nobody sends it again. It tells whether that is
// news.
func (r *renewer) invalidate(e tokenRequest) bool {
	a, ok := r.known.Get(e.audience())
	if !ok || a.invalid || !a.value.Compare(e.refused.Reveal()) {
		return false
	}
	invalid := *a
	invalid.invalid = true
	r.known.Add(e.audience(), &invalid)
	return true
}

// currentToken is the access token at hand while it is good, else one that somebody gets now: one at a time in this
// process, and among all workers. While there is a good one, nobody waits but who renews it, and a failure is only
// logged.
func (r *renewer) currentToken(ctx context.Context, e tokenRequest) (*accessToken, error) {
	const most = 4 // one that was just renewed may be refused or replaced at once
	for range most {
		have, f, mine := r.joinRenewal(e)
		switch usable := have.usable(e, r.Now()); {
		case f == nil:
			return have, nil
		case mine:
			return r.leadRenewal(ctx, e, have, f)
		case usable:
			return have, nil
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if f.err != nil && f.stored.Equal(e.token.UpdatedAt) && f.key == e.failureKey() { // else it is not about this one
			return nil, f.err
		}
	}
	return nil, &oauth.UnavailableError{Host: e.token.Issuer,
		Err: errors.New("its access tokens are refused as soon as they are there")}
}

// cachedToken is what is remembered, unless it is of an older credential.
func (r *renewer) cachedToken(e tokenRequest) *accessToken {
	a, ok := r.known.Get(e.audience())
	if !ok || a.stored.Before(e.token.UpdatedAt) {
		return nil
	}
	return a
}

// joinRenewal returns the access token at hand and the renewal that is under way, or one that is the caller's to lead;
// no flight when there is nothing to renew.
func (r *renewer) joinRenewal(e tokenRequest) (have *accessToken, f *flight, mine bool) {
	r.mu.Lock() // a flight ends after its token is known
	defer r.mu.Unlock()
	have = r.cachedToken(e)
	if have.usable(e, r.Now()) && !have.needsRefresh(r.Now()) {
		return have, nil, false
	}
	if f, ok := r.flights[e.audience()]; ok {
		return have, f, false
	}
	f = &flight{stored: e.token.UpdatedAt, key: e.failureKey(), done: make(chan struct{})}
	r.flights[e.audience()] = f
	return have, f, true
}

// leadRenewal renews for all who wait on f. have may still be good.
func (r *renewer) leadRenewal(ctx context.Context, e tokenRequest, have *accessToken,
	f *flight) (got *accessToken, err error) {
	f.err = errors.New("renewing an access token broke off") // what others hear if it panics
	defer func() {
		r.mu.Lock()
		delete(r.flights, e.audience())
		r.mu.Unlock()
		close(f.done)
	}()
	got, err = r.renewToken(ctx, e, have)
	if err == nil {
		r.known.Add(e.audience(), got)
	}
	f.err = err
	if err == nil || !have.usable(e, r.Now()) {
		return got, err
	}
	if !isRemembered(err) {
		r.Logger.Warn("an access token is not renewed yet; the old one is sent until it ends", "agent", e.token.ID,
			"origin", e.token.Origin,
			"issuer", e.token.Issuer, "ends", have.until.UTC().Format(time.RFC3339), "error", err)
	}
	return have, nil
}

// renewToken gets an access token, or finds that another worker has.
func (r *renewer) renewToken(ctx context.Context, e tokenRequest, have *accessToken) (*accessToken, error) {
	if have != nil && have.unsaved != nil {
		var err error
		if have, err = r.retrySave(ctx, have); err != nil || have.usable(e, r.Now()) && !have.needsRefresh(r.Now()) {
			return have, err
		}
	}
	if err := r.recentFailure(e); err != nil {
		if got := r.findNewer(ctx, e, have); got != nil {
			return got, nil
		}
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	for {
		mine, found, err := r.acquireLease(wait, e, have)
		if wait.Err() != nil && ctx.Err() == nil {
			r.rememberFailure(e, stuckPause, err)
		}
		if err != nil || found != nil {
			return found, err
		}
		got, err := r.adoptSpooled(wait, mine)
		if err == nil && got != nil {
			if have = got; got.usable(e, r.Now()) && !got.needsRefresh(r.Now()) {
				return got, nil
			}
			continue // its refresh token is of use
		}
		if err == nil {
			got, err = r.obtainToken(wait, e, mine)
		}
		switch {
		case err == nil:
			r.failed.Remove(e.failureKey())
			r.Logger.Debug("an access token was obtained", "agent", e.token.ID, "origin", e.token.Origin,
				"issuer", mine.Token.Issuer, "until", got.until)
			return got, nil
		case errors.Is(err, store.ErrSuperseded): // what there is now is newer
		case errors.Is(err, errLeaseOver):
			r.yieldLease(ctx, mine)
		default:
			r.recordFailure(ctx, e, mine, have, err)
			return nil, err
		}
	}
}

// findNewer finds an access token that another worker was luckier with; nil: there is none.
func (r *renewer) findNewer(ctx context.Context, e tokenRequest, have *accessToken) *accessToken {
	found, err := r.Ledger.LeaseRenewal(ctx, e.token, nil, 0)
	if err != nil {
		return nil // there is a reason already not to send anything
	}
	a := r.readAccess(found)
	if !a.usable(e, r.Now()) || have != nil && bytes.Equal(a.sealed, have.sealed) {
		return nil
	}
	r.failed.Remove(e.failureKey())
	return a
}

// leased is a renewal that is this worker's.
type leased struct {
	store.Renewal
	began time.Time // before the lease
}

// errLeaseOver: too little is left of the lease to ask and to save.
var errLeaseOver = errors.New("the lease of a renewal is nearly over")

// acquireLease makes the renewal this worker's; else it finds an access token that another worker has got, or waits for
// it.
func (r *renewer) acquireLease(ctx context.Context, e tokenRequest,
	have *accessToken) (mine leased, found *accessToken, err error) {
	var seen []byte
	if have != nil {
		seen = have.sealed
	}
	tick := r.Ticks
	if tick == nil {
		ticker := time.NewTicker(renewTick)
		defer ticker.Stop()
		tick = ticker.C
	}
	for {
		mine.began = r.Now()
		mine.Renewal, err = r.Ledger.LeaseRenewal(ctx, e.token, seen, renewLease)
		switch {
		case ctx.Err() != nil:
			r.yieldLease(ctx, mine)
			return mine, nil, r.explainWait(ctx, e)
		case err != nil && !errors.Is(err, store.ErrNotFound):
			return mine, nil, err
		case err != nil, !mine.Token.OAuth():
			return mine, nil, retry.Pause(reason.Throttled, time.Second,
				"the credential stored for "+string(e.token.Origin)+" is just being replaced")
		case mine.No != 0:
			return mine, nil, nil
		}
		if now := r.readAccess(mine.Renewal); now != nil && !bytes.Equal(now.sealed, seen) {
			if now.usable(e, r.Now()) {
				return mine, now, nil
			}
			seen = now.sealed // that is the one to replace
			continue
		}
		if mine.Access == nil {
			seen = nil
		}
		if have.usable(e, r.Now()) {
			return mine, have, nil // somebody else sees to it
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return mine, nil, r.explainWait(ctx, e)
		}
	}
}

// explainWait: another worker has not got the token in its time, or this one is stopped.
func (r *renewer) explainWait(ctx context.Context, e tokenRequest) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return &oauth.UnavailableError{Host: e.token.Issuer,
		Err: errors.New("another worker asks it for an access token and has got none yet")}
}

// yieldLease lets another worker try at once.
func (r *renewer) yieldLease(ctx context.Context, mine leased) {
	if mine.No == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.SaveTimeout)
	defer cancel()
	if err := r.Ledger.YieldRenewal(ctx, mine.Renewal); err != nil {
		r.Logger.Debug("the lease of a renewal that failed runs out by itself", "agent", mine.Token.ID, "error", err)
	}
}

// recordFailure lets another worker try, and has this one leave the authorization server alone for a while: one that
// answers slowly must not keep the worker's slots from the others.
func (r *renewer) recordFailure(ctx context.Context, e tokenRequest, mine leased, have *accessToken, err error) {
	r.yieldLease(ctx, mine)
	e.token = mine.Token // it may be newer
	var away *oauth.UnavailableError
	switch {
	case errors.As(err, &away):
		pause := max(awayPause, awayShare*r.Now().Sub(mine.began), away.RetryAfter)
		if f, ok := r.failed.Get(e.failureKey()); ok && have.usable(e, r.Now()) {
			pause = max(pause, min(2*f.pause, awayMost))
		}
		r.rememberFailure(e, pause, err)
	case retry.Classify(err).Ending == retry.Hold:
		r.rememberFailure(e, r.Patience, err)
	} // else a fault of ours, or a stop
}

func (r *renewer) rememberFailure(e tokenRequest, pause time.Duration, err error) {
	r.failed.Add(e.failureKey(), failedRenewal{stored: e.token.UpdatedAt, at: r.Now(), pause: pause, err: err})
}

// recentFailure is why a renewal failed a moment ago, if it is too early to try again.
func (r *renewer) recentFailure(e tokenRequest) error {
	f, ok := r.failed.Get(e.failureKey())
	ago := r.Now().Sub(f.at)
	var away *oauth.UnavailableError
	unanswered := errors.As(f.err, &away)
	if !ok || f.stored.Before(e.token.UpdatedAt) || ago >= f.pause || e.insist && !unanswered && ago >= insistAfter {
		return nil
	}
	left := f.pause - ago
	again := &renewalError{cause: f.err, again: true,
		text: fmt.Sprintf("%v (asked %s ago, and not again for %s)", f.err, ago.Round(time.Second),
			left.Round(time.Second))}
	if unanswered {
		later := *away
		later.RetryAfter = left
		again.cause = &later
	}
	return again
}

// renewalError puts a sentence over a cause that retry.Classify reads.
type renewalError struct {
	text  string
	cause error
	again bool // it is remembered from a moment ago
}

func (e *renewalError) Error() string { return e.text }
func (e *renewalError) Unwrap() error { return e.cause }

// isRemembered tells whether nothing was tried.
func isRemembered(err error) bool {
	var renewal *renewalError
	return errors.As(err, &renewal) && renewal.again
}
