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
	"golang.org/x/sync/singleflight"
)

// TokenCache is how long the known tokens are cached. A revoked token stays valid for up to this time.
const TokenCache = 5 * time.Second

// reloadPause is the least time between two loads of the known tokens. It bounds the load that requests with guessed
// tokens can put on Postgres.
const reloadPause = 200 * time.Millisecond

// knownWait is how long findKnown waits for Postgres if it knows the token. A scrape of Prometheus ends after 10 s.
const knownWait = time.Second

// callers identifies the callers of tokens.
type callers struct {
	own  secret.Secret // HERALD_API_TOKEN; zero if it is not set
	load func(context.Context) (operator.FindCaller, error)

	together singleflight.Group // merges concurrent loads

	mu     sync.Mutex
	known  operator.FindCaller // from the last load; nil before the first one
	loaded time.Time           // start of the last load
}

// find returns the caller that a token belongs to. It compares hashes, so that the time of the comparison does not
// reveal the length of HERALD_API_TOKEN.
//
// find answers from memory for known tokens, so that guessed tokens do not delay them. An unknown token may be new, so
// find loads the tokens again. Concurrent requests share one load, and loads are at least reloadPause apart.
func (c *callers) find(ctx context.Context, token secret.Secret) (caller operator.Caller, err error) {
	given := sha256.Sum256([]byte(token.Reveal()))
	if own := sha256.Sum256([]byte(c.own.Reveal())); !c.own.IsZero() &&
		subtle.ConstantTimeCompare(given[:], own[:]) == 1 {
		return operator.Caller{Name: "HERALD_API_TOKEN", Scopes: operator.AllScopes()}, nil
	}
	if c.load == nil || !operator.IsAPIToken(token) {
		return caller, operator.ErrUnknownToken
	}
	asked := time.Now()
	for {
		c.mu.Lock()
		known, loaded := c.known, c.loaded
		c.mu.Unlock()
		isNew := known != nil && !loaded.Before(asked)
		if isNew || known != nil && asked.Sub(loaded) < TokenCache {
			caller, err = known(ctx, token)
			if isNew || !errors.Is(err, operator.ErrUnknownToken) {
				return caller, err
			}
		}
		if err := loop.Pause(ctx, time.Until(loaded.Add(reloadPause))); err != nil {
			return caller, err
		}
		// Other callers wait for the load too. So it does not end with this caller, and is not one of its reads.
		load := c.together.DoChan("", func() (any, error) {
			return nil, c.reload(operator.WithCaller(context.WithoutCancel(ctx), operator.Caller{}))
		})
		select {
		case done := <-load:
			if done.Err != nil {
				return caller, done.Err
			}
		case <-ctx.Done():
			return caller, context.Cause(ctx)
		}
	}
}

// findKnown is find for a route that answers in outages of Postgres. A token of the last load counts as valid if
// Postgres does not answer within knownWait, or cannot note its use.
func (c *callers) findKnown(ctx context.Context, token secret.Secret) (operator.Caller, error) {
	soon, cancel := context.WithTimeout(ctx, knownWait)
	defer cancel()
	caller, err := c.find(soon, token)
	if err == nil || errors.Is(err, operator.ErrUnknownToken) {
		return caller, err
	}
	c.mu.Lock()
	known := c.known
	c.mu.Unlock()
	if known != nil {
		cancel() // do not wait for Postgres once more to note the use
		if caller, _ := known(soon, token); caller.Name != "" {
			return caller, nil
		}
	}
	return c.find(ctx, token)
}

func (c *callers) reload(ctx context.Context) error {
	began := time.Now()
	known, err := c.load(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.loaded = known, began
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
