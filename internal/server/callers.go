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
	"sync"
	"time"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/secret"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

// TokenCache is how long a token that was good is taken for good without asking Postgres again: a token that was revoked
// goes on for so long.
const TokenCache = 5 * time.Second

const (
	maxCachedTokens = 256
	// reloadPause is the shortest time between two loads of the known tokens: all that strangers who guess tokens can have
	// Postgres do is one load in that time.
	reloadPause = 200 * time.Millisecond
)

// callers tells who carries a token.
type callers struct {
	own    secret.Secret // HERALD_API_TOKEN; zero: there is none
	lookUp func(context.Context, secret.Secret) (operator.Caller, error)
	good   *lru.Cache[[sha256.Size]byte, knownCaller]
	load   func(context.Context) (func(secret.Secret) bool, error) // loads which tokens there are

	together singleflight.Group // by token, and of loads

	mu      sync.Mutex
	isKnown func(secret.Secret) bool // as loaded last; nil: never
	loaded  time.Time                // when that began
}

// knownCaller is who carried a token that was looked up.
type knownCaller struct {
	operator.Caller
	until time.Time
}

func newCallers(own secret.Secret, lookUp func(context.Context, secret.Secret) (operator.Caller, error),
	load func(context.Context) (func(secret.Secret) bool, error)) *callers {
	good, _ := lru.New[[sha256.Size]byte, knownCaller](maxCachedTokens) // only a size below 1 is an error
	return &callers{own: own, lookUp: lookUp, load: load, good: good}
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
	known, err := c.isToken(ctx, token, given)
	if err != nil {
		return operator.Caller{}, err
	}
	if !known {
		return operator.Caller{}, operator.ErrUnknownToken
	}
	// Many requests may come with one token at once. Each caller's cancellation affects only that caller.
	found, err, _ := c.together.Do(string(given[:]), func() (any, error) {
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

// isToken reports whether a token is one that Postgres knows. It answers from memory for known tokens, so guesses delay
// none. An unknown one may have been created a moment ago: the tokens are loaded again, by one request for all, and no
// more often than reloadPause allows.
func (c *callers) isToken(ctx context.Context, token secret.Secret, given [sha256.Size]byte) (bool, error) {
	asked := time.Now()
	for {
		c.mu.Lock()
		isKnown, loaded := c.isKnown, c.loaded
		c.mu.Unlock()
		if c.good.Contains(given) || isKnown != nil && isKnown(token) {
			return true, nil
		}
		if isKnown != nil && !loaded.Before(asked) {
			return false, nil
		}
		pause := time.NewTimer(time.Until(loaded.Add(reloadPause)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return false, ctx.Err()
		}
		_, err, _ := c.together.Do("load", func() (any, error) { return nil, c.reload(context.WithoutCancel(ctx)) })
		if err != nil {
			return false, err
		}
	}
}

func (c *callers) reload(ctx context.Context) error {
	began := time.Now()
	isKnown, err := c.load(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isKnown, c.loaded = isKnown, began
	return nil
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
