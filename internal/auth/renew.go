package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Authority is the part of the OAuth client that renewals use (package oauth).
type Authority interface {
	Resource(ctx context.Context, mcpURL string, ch oauth.Challenge) (oauth.Resource, error)
	ServerOf(ctx context.Context, r oauth.Resource, issuer string) (oauth.Server, error)
	Obtain(ctx context.Context, s oauth.Server, c oauth.Credential, scope string) (oauth.Token, error)
}

// RenewalRecords is the part of the operator's records that renewals use.
type RenewalRecords interface {
	LeaseRenewal(ctx context.Context, t records.Token, seen []byte, lease time.Duration) (records.Renewal, error)
	SaveRenewal(ctx context.Context, r records.Renewal, a records.Access, credential []byte) error
	YieldRenewal(ctx context.Context, r records.Renewal) error
}

// A renewal belongs to one worker until its lease ends. Discovery, token request and saving must therefore end before.
const (
	renewLease   = 30 * time.Second
	findTimeout  = 12 * time.Second
	askTimeout   = 10 * time.Second
	saveTimeout  = 5 * time.Second
	renewTimeout = renewLease + findTimeout // for waiting for another worker's renewal and then renewing
	renewTick    = 100 * time.Millisecond
	dueFirst     = 5 * time.Second        // minimum age of a token before it is renewed early
	awayPause    = 500 * time.Millisecond // minimum pause after an authorization server gave no usable answer
	awayShare    = 4                      // the pause is at least this multiple of the time that the renewal took
	awayMost     = 30 * time.Second       // maximum of the growing pause while there is a usable access token
	stuckPause   = 10 * time.Second       // after a renewal of another worker did not finish in time
	insistAfter  = 5 * time.Second        // minimum interval between requests of an operator after a refusal
)

// audience is the agent and the origin that an access token is sent to.
type audience struct {
	agent  erc8004.Agent
	origin netguard.CredentialOrigin
}

// tokenRequest describes the purpose of an access token.
type tokenRequest struct {
	token   records.Token   // the credential, as read
	url     string          // the agent's endpoint
	refused secret.Secret   // the header that the agent refused; zero: none was sent
	says    oauth.Challenge // the agent's challenge in that refusal
	narrow  bool            // the agent requires a token with more scope, but may accept this one for other requests
	insist  bool            // ignore a recent failure
}

// audience returns the agent and origin that the token is sent to.
func (e tokenRequest) audience() audience { return audience{e.token.Agent, e.token.Origin} }

// failureKey identifies remembered failures. A failure to obtain more scope is separate from one with the stored scope.
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

// accessToken is an access token with its metadata. It is immutable. A nil *accessToken means that no token is known.
type accessToken struct {
	// stored is when the credential that the token was obtained with was stored (records.Token.UpdatedAt).
	stored  time.Time
	path    string        // records.Token.Path of that credential
	sealed  []byte        // ciphertext in the store, even of an unusable token; nil: not in the store
	value   secret.Secret // of the header; zero: decryption failed
	scope   string        // the requested scope
	since   time.Time
	until   time.Time // zero: the authorization server did not specify it
	invalid bool      // the agent refused it
	unsaved *unsaved  // a renewal that the store has not stored; nil: everything is stored
}

// unsaved is a renewal whose saving failed.
type unsaved struct {
	renewal    records.Renewal
	access     records.Access
	credential []byte // encrypted, with a new refresh token; nil: the refresh token did not change

	spool     *secret.Binding // binding of the entry in Redis; nil: there is nothing to put into Redis
	spoolText []byte          // encrypted
	spooled   atomic.Bool     // the entry is in Redis
}

// usable reports whether the token can be sent for e.
func (a *accessToken) usable(e tokenRequest, now time.Time) bool {
	return a != nil && !a.invalid && !a.value.IsZero() && (a.until.IsZero() || now.Before(a.until)) &&
		(e.refused.IsZero() || !a.value.Compare(e.refused.Reveal()))
}

// needsRefresh reports whether the token should be renewed or its renewal saved again. Renewal is due after 80 % of its
// life or 60 s before its end, whichever is earlier. It is not due before half of its life, nor before dueFirst,
// because some servers return the same token until it expires.
func (a *accessToken) needsRefresh(now time.Time) bool {
	if a.unsaved != nil || a.until.IsZero() {
		return a.unsaved != nil
	}
	life := a.until.Sub(a.since)
	return now.Sub(a.since) >= max(min(life*8/10, life-time.Minute), life/2, dueFirst)
}

// failedRenewal is a failure that is remembered, so that not every delivery repeats it.
type failedRenewal struct {
	stored time.Time // of the credential
	at     time.Time
	pause  time.Duration
	err    error
}

// flight is a renewal in progress in this process. All callers that need its token wait for it.
type flight struct {
	stored time.Time // when its credential was stored
	key    failureKey
	done   chan struct{}
	err    error         // set before done is closed
	asked  time.Duration // of its requests (WithCosts), set before done is closed
}

// bearerHeader returns the value of the Authorization header for a tokenRequest.
func (z *Authorizer) bearerHeader(ctx context.Context, e tokenRequest) (value secret.Secret, err error) {
	a, err := z.currentToken(ctx, e)
	if err != nil {
		return value, err
	}
	if !a.stored.Equal(e.token.UpdatedAt) && a.path != e.token.Path {
		return value, pauseReplaced(e) // the operator allowed the newer credential for another path
	}
	return a.value, nil
}

// invalidateToken records that the agent refused an access token, so that it is not sent again. It reports whether the
// token was still valid before. z.mu is held.
func (z *Authorizer) invalidateToken(e tokenRequest) bool {
	a, ok := z.access.Get(e.audience())
	if !ok || a.invalid || !a.value.Compare(e.refused.Reveal()) {
		return false
	}
	invalid := *a
	invalid.invalid = true
	z.access.Add(e.audience(), &invalid)
	return true
}

// currentToken returns the cached access token while it is usable and not due for renewal, or else renews it. One
// caller at a time renews, in this process and among all workers. While the old token is usable, the other callers get
// it without waiting, and a failure is only logged.
func (z *Authorizer) currentToken(ctx context.Context, e tokenRequest) (*accessToken, error) {
	const most = 4 // a token that was just renewed may immediately be refused or replaced
	for range most {
		have, f, mine := z.joinRenewal(e)
		switch usable := have.usable(e, z.Now()); {
		case f == nil:
			return have, nil
		case mine:
			return z.leadRenewal(ctx, e, have, f)
		case usable:
			return have, nil
		}
		joined := z.Now()
		select {
		case <-f.done:
			addCost(ctx, min(f.asked, z.Now().Sub(joined)))
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		// The error of a flight for another credential or scope does not concern this caller.
		if f.err != nil && f.stored.Equal(e.token.UpdatedAt) && f.key == e.failureKey() {
			return nil, f.err
		}
	}
	return nil, &oauth.UnavailableError{Host: e.token.Issuer,
		Err: errors.New("its access tokens are refused as soon as they are there")}
}

// cachedToken returns the cached token, unless it belongs to an older credential.
func (z *Authorizer) cachedToken(e tokenRequest) *accessToken {
	a, ok := z.access.Get(e.audience())
	if !ok || a.stored.Before(e.token.UpdatedAt) {
		return nil
	}
	return a
}

// joinRenewal returns the cached token and the renewal in progress. If none is in progress it starts one, which the
// caller must lead (mine). f is nil if no renewal is needed.
func (z *Authorizer) joinRenewal(e tokenRequest) (have *accessToken, f *flight, mine bool) {
	z.mu.Lock() // leadRenewal stores the token before it removes its flight
	defer z.mu.Unlock()
	have = z.cachedToken(e)
	if have.usable(e, z.Now()) && !have.needsRefresh(z.Now()) {
		return have, nil, false
	}
	if f, ok := z.flights[e.audience()]; ok {
		return have, f, false
	}
	f = &flight{stored: e.token.UpdatedAt, key: e.failureKey(), done: make(chan struct{})}
	z.flights[e.audience()] = f
	return have, f, true
}

// leadRenewal renews the token for all callers that wait on f. If that fails and have is still usable, it returns have.
func (z *Authorizer) leadRenewal(ctx context.Context, e tokenRequest, have *accessToken,
	f *flight) (got *accessToken, err error) {
	f.err = errors.New("renewing an access token broke off") // the error for the other callers if renewToken panics
	defer func() {
		z.mu.Lock()
		delete(z.flights, e.audience())
		z.mu.Unlock()
		close(f.done)
	}()
	got, err = z.renewToken(WithCosts(ctx, &f.asked), e, have)
	addCost(ctx, f.asked)
	if err == nil {
		z.access.Add(e.audience(), got)
	}
	f.err = err
	if err == nil || !have.usable(e, z.Now()) {
		return got, err
	}
	if !isRemembered(err) {
		z.Logger.Warn("an access token is not renewed yet; the old one is sent until it ends", "agent", e.token.ID,
			"origin", e.token.Origin,
			"issuer", e.token.Issuer, "ends", have.until.UTC().Format(time.RFC3339), "error", err)
	}
	return have, nil
}

// renewToken obtains an access token, or returns one that another worker obtained.
func (z *Authorizer) renewToken(ctx context.Context, e tokenRequest, have *accessToken) (*accessToken, error) {
	if have != nil && have.unsaved != nil {
		var err error
		if have, err = z.retrySave(ctx, have); err != nil || have.usable(e, z.Now()) && !have.needsRefresh(z.Now()) {
			return have, err
		}
	}
	if err := z.recentFailure(e); err != nil {
		if got := z.findNewer(ctx, e, have); got != nil {
			return got, nil
		}
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	for {
		mine, found, err := z.acquireLease(wait, e, have)
		if wait.Err() != nil && ctx.Err() == nil {
			z.rememberFailure(e, stuckPause, err)
		}
		if err != nil || found != nil {
			return found, err
		}
		got, err := z.adoptSpooled(wait, mine)
		if err == nil && got != nil {
			if have = got; got.usable(e, z.Now()) && !got.needsRefresh(z.Now()) {
				return got, nil
			}
			continue // continue with its refresh token
		}
		if err == nil {
			got, err = z.obtainToken(wait, e, mine)
		}
		switch {
		case err == nil:
			z.failed.Remove(e.failureKey())
			z.Logger.Debug("an access token was obtained", "agent", e.token.ID, "origin", e.token.Origin,
				"issuer", mine.Token.Issuer, "until", got.until)
			return got, nil
		case errors.Is(err, records.ErrSuperseded): // try again with the newer credential or token
		case errors.Is(err, errLeaseOver):
			z.yieldLease(ctx, mine)
		default:
			z.recordFailure(ctx, e, mine, have, err)
			return nil, err
		}
	}
}

// findNewer returns a usable access token that another worker stored; nil if there is no newer one.
func (z *Authorizer) findNewer(ctx context.Context, e tokenRequest, have *accessToken) *accessToken {
	found, err := z.Records.LeaseRenewal(ctx, e.token, nil, 0)
	if err != nil {
		return nil // the caller returns the error of the failed renewal
	}
	a := z.readAccess(found)
	if !a.usable(e, z.Now()) || have != nil && bytes.Equal(a.sealed, have.sealed) {
		return nil
	}
	z.failed.Remove(e.failureKey())
	return a
}

// leased is a renewal that is leased to this worker.
type leased struct {
	records.Renewal
	began time.Time // time before the lease was requested
}

// errLeaseOver reports that the rest of the lease is too short to request and save a token.
var errLeaseOver = errors.New("the lease of a renewal is nearly over")

// acquireLease acquires the lease of the renewal. If another worker has it, acquireLease returns the usable token have,
// or waits until the other worker has stored a usable token and returns that one.
func (z *Authorizer) acquireLease(ctx context.Context, e tokenRequest,
	have *accessToken) (mine leased, found *accessToken, err error) {
	var seen []byte
	if have != nil {
		seen = have.sealed
	}
	tick := z.Ticks
	if tick == nil {
		tick = time.Tick(renewTick)
	}
	for {
		mine.began = z.Now()
		mine.Renewal, err = z.Records.LeaseRenewal(ctx, e.token, seen, renewLease)
		switch {
		case ctx.Err() != nil:
			z.yieldLease(ctx, mine)
			return mine, nil, z.explainWait(ctx, e)
		case err != nil && !errors.Is(err, ledger.ErrNotFound):
			return mine, nil, err
		case err != nil, !mine.Token.OAuth():
			return mine, nil, pauseReplaced(e)
		case mine.No != 0:
			return mine, nil, nil
		}
		if now := z.readAccess(mine.Renewal); now != nil && !bytes.Equal(now.sealed, seen) {
			if now.usable(e, z.Now()) {
				return mine, now, nil
			}
			seen = now.sealed // this is the token to replace
			continue
		}
		if mine.Access == nil {
			seen = nil
		}
		if have.usable(e, z.Now()) {
			return mine, have, nil // the other worker renews it
		}
		began := z.Now()
		select {
		case <-tick:
			addCost(ctx, z.Now().Sub(began))
		case <-ctx.Done():
			return mine, nil, z.explainWait(ctx, e)
		}
	}
}

// pauseReplaced returns the error of a delivery whose credential was replaced after its claim. Its next claim reads the
// new one.
func pauseReplaced(e tokenRequest) error {
	return outcome.Pause(outcome.Throttled, time.Second,
		"the credential stored for "+string(e.token.Origin)+" is just being replaced")
}

// explainWait returns the error of a wait that timed out or was stopped.
func (z *Authorizer) explainWait(ctx context.Context, e tokenRequest) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return &oauth.UnavailableError{Host: e.token.Issuer,
		Err: errors.New("another worker asks it for an access token and has got none yet")}
}

// yieldLease releases the lease, so that another worker can try immediately.
func (z *Authorizer) yieldLease(ctx context.Context, mine leased) {
	if mine.No == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), z.SaveTimeout)
	defer cancel()
	if err := z.Records.YieldRenewal(ctx, mine.Renewal); err != nil {
		z.Logger.Debug("the lease of a renewal that failed runs out by itself", "agent", mine.Token.ID, "error", err)
	}
}

// recordFailure releases the lease, so that another worker can try, and makes this worker pause before it calls the
// authorization server again. A slow server would otherwise occupy the worker's slots.
func (z *Authorizer) recordFailure(ctx context.Context, e tokenRequest, mine leased, have *accessToken, err error) {
	z.yieldLease(ctx, mine)
	e.token = mine.Token // it may be newer
	var away *oauth.UnavailableError
	switch {
	case errors.As(err, &away):
		pause := max(awayPause, awayShare*z.Now().Sub(mine.began), away.RetryAfter)
		if f, ok := z.failed.Get(e.failureKey()); ok && have.usable(e, z.Now()) {
			pause = max(pause, min(2*f.pause, awayMost))
		}
		z.rememberFailure(e, pause, err)
	case z.Classify(err).Ending == outcome.Held:
		z.rememberFailure(e, z.RefusalPause, err)
	} // otherwise an internal error, or the caller was stopped
}

// rememberFailure makes recentFailure return err for the duration of pause.
func (z *Authorizer) rememberFailure(e tokenRequest, pause time.Duration, err error) {
	z.failed.Add(e.failureKey(), failedRenewal{stored: e.token.UpdatedAt, at: z.Now(), pause: pause, err: err})
}

// recentFailure returns the error of a recent renewal if it is too early to try again, else nil.
func (z *Authorizer) recentFailure(e tokenRequest) error {
	f, ok := z.failed.Get(e.failureKey())
	ago := z.Now().Sub(f.at)
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

// renewalError reports, with a text for operators, that no token can be sent now: an access token cannot be obtained,
// or a token's file cannot be read. Config.Classify evaluates its cause.
type renewalError struct {
	text  string
	cause error
	again bool // returned from memory; no request was made
}

func (e *renewalError) Error() string { return e.text }
func (e *renewalError) Unwrap() error { return e.cause }

// isRemembered reports whether err is a remembered failure, so that no request was made.
func isRemembered(err error) bool {
	var renewal *renewalError
	return errors.As(err, &renewal) && renewal.again
}
