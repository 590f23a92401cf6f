package server

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/secret"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
)

// TokenCache is how long a token that was good is taken for good without asking Postgres again: a token that was revoked
// goes on for so long.
const TokenCache = 5 * time.Second

const (
	maxCachedTokens = 256
	// lookupsPerSecond bounds what strangers who guess tokens can have Postgres do; lookupBurst come at once.
	lookupsPerSecond = 20
	lookupBurst      = 40
)

// callers tells who carries a token.
type callers struct {
	own    secret.Secret // HERALD_API_TOKEN; zero: there is none
	lookUp func(context.Context, secret.Secret) (operator.Caller, error)
	good   *lru.Cache[[sha256.Size]byte, knownCaller]
	pace   *rate.Limiter

	together singleflight.Group // by token
}

// knownCaller is who carried a token that was looked up.
type knownCaller struct {
	operator.Caller
	until time.Time
}

func newCallers(own secret.Secret, lookUp func(context.Context, secret.Secret) (operator.Caller, error)) *callers {
	good, _ := lru.New[[sha256.Size]byte, knownCaller](maxCachedTokens) // only a size below 1 is an error
	return &callers{own: own, lookUp: lookUp, pace: rate.NewLimiter(lookupsPerSecond, lookupBurst), good: good}
}

// busyError means that too many unknown tokens were given of late.
type busyError struct{}

func (*busyError) Error() string {
	return "too many requests with unknown tokens: try again in a second"
}

// find tells who carries the token. Both sides are hashed, so that the comparison tells nothing about the length of
// HERALD_API_TOKEN either.
func (c *callers) find(ctx context.Context, token secret.Secret) (operator.Caller, error) {
	given := sha256.Sum256([]byte(token.Reveal()))
	if own := sha256.Sum256([]byte(c.own.Reveal())); !c.own.IsZero() && subtle.ConstantTimeCompare(given[:], own[:]) == 1 {
		return operator.Caller{Name: "HERALD_API_TOKEN", Scopes: operator.AllScopes()}, nil
	}
	if found, ok := c.good.Get(given); ok && time.Now().Before(found.until) {
		return found.Caller, nil
	}
	if c.lookUp == nil || !operator.IsAPIToken(token) {
		return operator.Caller{}, operator.ErrUnknownToken
	}
	// Together: many requests may come with one token at once. Nobody's cancellation is another one's.
	found, err, _ := c.together.Do(string(given[:]), func() (any, error) {
		if !c.good.Contains(given) && !c.pace.Allow() { // one that was good is no guess
			return operator.Caller{}, &busyError{}
		}
		found, err := c.lookUp(context.WithoutCancel(ctx), token)
		switch {
		case err == nil:
			c.good.Add(given, knownCaller{found, time.Now().Add(TokenCache)})
		case errors.Is(err, operator.ErrUnknownToken):
			c.good.Remove(given)
		}
		return found, err
	})
	return found.(operator.Caller), err
}

// Forms.
const (
	// FormField is the name of the field that carries Visitor.FormToken.
	FormField = "form_token"
	// formHour is how long a form token is made for; the one before it is good too.
	formHour = 12 * time.Hour
	// maxForm bounds a form, in bytes.
	maxForm = 64 << 10
)

// newFormKey is what form tokens are made with: the same in all workers that share HERALD_API_TOKEN, else this process'
// own.
func newFormKey(token secret.Secret) []byte {
	key := make([]byte, 32)
	if token.IsZero() {
		_, _ = rand.Read(key) // never fails (crypto/rand)
		return key
	}
	mac := hmac.New(sha256.New, []byte(token.Reveal()))
	mac.Write([]byte("herald form token"))
	return mac.Sum(nil)
}

// makeFormToken is what a form of a page must bring to change anything: no other site can read it.
func (s *Server) makeFormToken(c operator.Caller, at time.Time) string {
	mac := hmac.New(sha256.New, s.formKey)
	fmt.Fprintf(mac, "%d %s", at.Unix()/int64(formHour.Seconds()), c.Name)
	return hex.EncodeToString(mac.Sum(nil))
}

func (s *Server) isFormTokenGood(w http.ResponseWriter, r *http.Request, c operator.Caller) bool {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	given := r.PostFormValue(FormField)
	now := time.Now()
	if s.cfg.Token.IsZero() { // whoever looks without a token is asked for one by the first change: the form is of before
		before := operator.Caller{Name: anonymous}
		if hmac.Equal([]byte(given), []byte(s.makeFormToken(before, now))) ||
			hmac.Equal([]byte(given), []byte(s.makeFormToken(before, now.Add(-formHour)))) {
			return true
		}
	}
	return hmac.Equal([]byte(given), []byte(s.makeFormToken(c, now))) ||
		hmac.Equal([]byte(given), []byte(s.makeFormToken(c, now.Add(-formHour))))
}
