package agentauth

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/text"
)

// An access token that an agent refuses as soon as it is there was perhaps revoked on its way, or the agent does not
// know the key yet that it is signed with: deliveries wait and another token is asked for, with growing pauses. So many
// in a row are no accident.
const (
	maxFreshRefusals   = 4
	refusedPauseGrowth = 4 // each pause is so many times as long as the one before
)

// freshRefusals are the fresh access tokens that an agent refused in a row. One is fresh while it takes the place of a
// refused one and the agent has taken none since: there is an entry as long.
type freshRefusals struct {
	stored   time.Time     // when the credential was stored that they were had with
	count    int           // 0: the fresh one is not refused yet
	replaced secret.Secret // the header that was refused first: others were sent it too, and it is not fresh
}

// replaceRefused has the access token that the agent refused replaced: the next one is fresh.
func (r *renewer) replaceRefused(e tokenRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.invalidate(e) {
		r.refusals.Add(e.audience(), freshRefusals{e.token.UpdatedAt, r.countFresh(e), e.refused})
	}
}

// refusesFresh tells whether the access token that the agent refused is the one at hand, and is or was fresh.
func (r *renewer) refusesFresh(e tokenRequest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, ok := r.known.Get(e.audience())
	had, fresh := r.refusals.Get(e.audience())
	return ok && fresh && !had.stored.Before(e.token.UpdatedAt) && a.value.Compare(e.refused.Reveal()) &&
		!had.replaced.Compare(e.refused.Reveal())
}

// countFresh needs the lock.
func (r *renewer) countFresh(e tokenRequest) int {
	if had, ok := r.refusals.Get(e.audience()); ok && !had.stored.Before(e.token.UpdatedAt) {
		return had.count
	}
	return 0
}

// acceptFresh notes that the agent takes its access tokens: what it refuses from now on is not fresh.
func (r *renewer) acceptFresh(to audience) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusals.Remove(to)
}

// rejectFresh is what becomes of an attempt whose fresh access token the agent refuses: it waits, and so do the agent's
// other deliveries, without asking anybody. After maxFreshRefusals in a row all are held, since neither another token
// nor time will mend that. Of many deliveries that were refused the same token one counts.
func (r *renewer) rejectFresh(e tokenRequest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.invalidate(e) {
		if err := r.recentFailure(e); err != nil {
			return err
		}
		return r.awaitFresh(e, r.RefusedPause)
	}
	count := r.countFresh(e) + 1
	had, _ := r.refusals.Get(e.audience())
	r.refusals.Add(e.audience(), freshRefusals{e.token.UpdatedAt, count, had.replaced})
	if count >= maxFreshRefusals {
		problem := fmt.Sprintf("the agent refused each of the last %d access tokens as soon as %s had given it (HTTP 401%s): ask its author whether it takes "+
			"tokens of that authorization server; then store another credential, %s, or try again with `worker delivery replay`",
			count, text.Excerpt(e.token.Issuer, 300), describeChallenge(e), howToStore(e.token))
		err := &renewalError{text: problem, cause: retry.Fail(reason.AuthRequired, problem)}
		r.rememberFailure(e, r.Patience, err)
		return err
	}
	pause := r.RefusedPause
	for range count - 1 {
		pause *= refusedPauseGrowth
	}
	err := r.awaitFresh(e, pause)
	r.rememberFailure(e, pause, err)
	return err
}

// awaitFresh has a delivery wait until another access token is worth asking for. That says nothing of how the agent's
// endpoint does.
func (r *renewer) awaitFresh(e tokenRequest, pause time.Duration) error {
	problem := fmt.Sprintf("the agent refused an access token that %s had just given for it (HTTP 401%s); another one is asked for in %s",
		text.Excerpt(e.token.Issuer, 300), describeChallenge(e), pause)
	cause := &oauth.UnavailableError{Host: string(e.token.Origin), Status: http.StatusUnauthorized, RetryAfter: pause,
		Err: errors.New("HTTP 401")}
	return &renewalError{text: problem, cause: cause}
}

// describeChallenge is the code that the agent gave with its refusal.
func describeChallenge(e tokenRequest) string {
	if e.says.Error == "" {
		return ""
	}
	return ", " + text.Excerpt(e.says.Error, 64)
}
