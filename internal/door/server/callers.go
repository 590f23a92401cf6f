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
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

// TokenCache is how long a valid token is cached. A revoked token stays valid for up to this time.
const TokenCache = 5 * time.Second

const (
	maxCachedTokens = 256
	// reloadPause is the least time between two loads of the known tokens. It bounds the load that requests with
	// guessed tokens can put on Postgres.
	reloadPause = 200 * time.Millisecond
)

// callers identifies the callers of tokens.
type callers struct {
	own    secret.Secret // HERALD_API_TOKEN; zero if it is not set
	lookUp func(context.Context, secret.Secret) (operator.Caller, error)
	good   *lru.Cache[[sha256.Size]byte, knownCaller]
	load   func(context.Context) (func(secret.Secret) bool, error) // loads the known tokens

	together singleflight.Group // merges concurrent look-ups of one token, and concurrent loads

	mu      sync.Mutex
	isKnown func(secret.Secret) bool // from the last load; nil before the first one
	loaded  time.Time                // start of the last load
}

// knownCaller is a cached caller.
type knownCaller struct {
	operator.Caller
	until time.Time
}

func newCallers(own secret.Secret, lookUp func(context.Context, secret.Secret) (operator.Caller, error),
	load func(context.Context) (func(secret.Secret) bool, error)) *callers {
	good, _ := lru.New[[sha256.Size]byte, knownCaller](maxCachedTokens) // only a size below 1 is an error
	return &callers{own: own, lookUp: lookUp, load: load, good: good}
}

// find returns the caller that a token belongs to. It compares hashes, so that the time of the comparison does not
// reveal the length of HERALD_API_TOKEN.
func (c *callers) find(ctx context.Context, token secret.Secret) (operator.Caller, error) {
	given := sha256.Sum256([]byte(token.Reveal()))
	if own := sha256.Sum256([]byte(c.own.Reveal())); !c.own.IsZero() &&
		subtle.ConstantTimeCompare(given[:], own[:]) == 1 {
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
	// Merge concurrent look-ups of one token. Each caller's cancellation affects only that caller.
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

// isToken reports whether Postgres knows a token. It answers from memory for known tokens, so that guessed tokens do
// not delay them. An unknown token may be new, so isToken loads the tokens again. Concurrent requests share one load,
// and loads are at least reloadPause apart.
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
		if err := loop.Pause(ctx, time.Until(loaded.Add(reloadPause))); err != nil {
			return false, err
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

// Constants of form tokens.
const (
	// FormField is the name of the form field that contains Visitor.FormToken.
	FormField = "form_token"
	// formHour is the period of a form token. The token of the previous period is also valid.
	formHour = 12 * time.Hour
	// maxForm bounds a form in bytes.
	maxForm = 64 << 10
)

// newFormKey returns the key of form tokens. All workers with the same HERALD_API_TOKEN share it; without that token
// each process has its own.
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

// makeFormToken returns the token that a page's form must contain to change anything. Pages of other sites cannot read
// it.
func (s *Server) makeFormToken(c operator.Caller, at time.Time) string {
	mac := hmac.New(sha256.New, s.formKey)
	fmt.Fprintf(mac, "%d %s", at.Unix()/int64(formHour.Seconds()), c.Name)
	return hex.EncodeToString(mac.Sum(nil))
}

func (s *Server) isFormTokenGood(w http.ResponseWriter, r *http.Request, c operator.Caller) bool {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	given := r.PostFormValue(FormField)
	callers := []operator.Caller{c}
	if s.cfg.Token.IsZero() { // the form may have been rendered before the visitor gave a token
		callers = append(callers, operator.Caller{Name: anonymous})
	}
	now := time.Now()
	return slices.ContainsFunc(callers, func(c operator.Caller) bool {
		return hmac.Equal([]byte(given), []byte(s.makeFormToken(c, now))) ||
			hmac.Equal([]byte(given), []byte(s.makeFormToken(c, now.Add(-formHour))))
	})
}
