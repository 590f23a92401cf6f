package auth

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/outcome"
)

// An agent may refuse a fresh access token because the token was revoked in the meantime, or because the agent does not
// yet know the key that signed it. Deliveries then wait, and another token is requested after growing pauses.
// maxFreshRefusals consecutive refusals are no coincidence.
const (
	maxFreshRefusals   = 4
	refusedPauseGrowth = 4 // factor by which each pause exceeds the previous one
)

// freshRefusals counts the fresh access tokens that an agent refused in a row. A token is fresh if it was given after
// the one that it replaces was refused, and the agent has accepted none since. The entry exists during that time.
type freshRefusals struct {
	stored time.Time // when the credential of these tokens was stored
	at     time.Time // when the replaced one was refused, by this worker's clock
	count  int       // 0: the fresh token has not been refused yet
	// replaced is the header that was refused first. Other requests sent it too, and it does not count as fresh.
	replaced secret.Secret
}

// replaceRefused invalidates the access token that the agent refused and marks the next one as fresh.
func (z *Authorizer) replaceRefused(e tokenRequest) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.invalidateToken(e) {
		z.refusals.Add(e.audience(), freshRefusals{e.token.UpdatedAt, z.Now(), z.countFresh(e), e.refused})
	}
}

// refusesFresh reports whether the refused access token is the current one and counts as fresh.
func (z *Authorizer) refusesFresh(e tokenRequest) bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	a, ok := z.access.Get(e.audience())
	had, fresh := z.refusals.Get(e.audience())
	return ok && fresh && !had.stored.Before(e.token.UpdatedAt) && a.value.Compare(e.refused.Reveal()) &&
		!had.replaced.Compare(e.refused.Reveal()) && !a.since.Before(had.at)
}

// countFresh returns the number of fresh tokens refused in a row. z.mu is held.
func (z *Authorizer) countFresh(e tokenRequest) int {
	if had, ok := z.refusals.Get(e.audience()); ok && !had.stored.Before(e.token.UpdatedAt) {
		return had.count
	}
	return 0
}

// acceptFresh records that the agent accepted an access token, so that a later refusal does not concern a fresh one.
func (z *Authorizer) acceptFresh(to audience) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.refusals.Remove(to)
}

// rejectFresh returns the error of an attempt whose fresh access token the agent refused. The attempt and the agent's
// other deliveries wait without further requests. After maxFreshRefusals in a row all of them are held, because neither
// another token nor time will help. If many deliveries were refused with the same token, it counts once.
func (z *Authorizer) rejectFresh(e tokenRequest) error {
	z.mu.Lock()
	defer z.mu.Unlock()
	if !z.invalidateToken(e) {
		if err := z.recentFailure(e); err != nil {
			return err
		}
		return z.awaitFresh(e, z.RefusedPause)
	}
	count := z.countFresh(e) + 1
	had, _ := z.refusals.Get(e.audience())
	z.refusals.Add(e.audience(), freshRefusals{e.token.UpdatedAt, had.at, count, had.replaced})
	if count >= maxFreshRefusals {
		problem := fmt.Sprintf("the agent refused each of the last %d access tokens as soon as %s had given it (HTTP "+
			"401%s): ask its author whether it takes tokens of that authorization server; then store another "+
			"credential, %s, or try again with `worker delivery replay`", count, text.Excerpt(e.token.Issuer, 300),
			describeChallenge(e), howToStore(e.token))
		err := &renewalError{text: problem, cause: outcome.Fail(outcome.AuthRequired, problem)}
		z.rememberFailure(e, z.RefusalPause, err)
		return err
	}
	pause := z.RefusedPause
	for range count - 1 {
		pause *= refusedPauseGrowth
	}
	err := z.awaitFresh(e, pause)
	z.rememberFailure(e, pause, err)
	return err
}

// awaitFresh returns an error that delays a delivery until another access token can be requested. The error does not
// count against the agent's endpoint.
func (z *Authorizer) awaitFresh(e tokenRequest, pause time.Duration) error {
	problem := fmt.Sprintf("the agent refused an access token that %s had just given for it (HTTP 401%s); "+
		"another one is asked for in %s", text.Excerpt(e.token.Issuer, 300), describeChallenge(e), pause)
	cause := &oauth.UnavailableError{Host: string(e.token.Origin), Status: http.StatusUnauthorized, RetryAfter: pause,
		Err: errors.New("HTTP 401")}
	return &renewalError{text: problem, cause: cause}
}

// describeChallenge returns the error code of the agent's challenge, as part of a sentence.
func describeChallenge(e tokenRequest) string {
	if e.says.Error == "" {
		return ""
	}
	return ", " + text.Excerpt(e.says.Error, 64)
}
