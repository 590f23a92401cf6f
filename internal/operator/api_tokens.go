package operator

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Scope is a permission of an API token.
type Scope string

// The scopes.
const (
	ScopeRead    Scope = "read"    // read everything
	ScopeEnqueue Scope = "enqueue" // enqueue jobs
	ScopeOperate Scope = "operate" // change deliveries and agents, and read everything
	ScopeDirect  Scope = "direct"  // call tools directly, and enqueue jobs that say where and how to call
)

// AllScopes returns every scope. HERALD_API_TOKEN has all of them.
func AllScopes() []Scope { return []Scope{ScopeRead, ScopeEnqueue, ScopeOperate, ScopeDirect} }

// Caller is the authenticated author of an HTTP request.
type Caller struct {
	Name   string // for the audit
	Scopes []Scope
}

// May reports whether the caller may use an operation that needs the scope.
func (c Caller) May(s Scope) bool {
	return slices.Contains(c.Scopes, s) || s == ScopeRead && slices.Contains(c.Scopes, ScopeOperate)
}

// apiTokenPrefix begins every token, so that secret scanners find tokens that were committed by mistake.
const apiTokenPrefix = "herald_"

// NewAPIToken is a token that was just created. Its secret part is stored only as a hash.
type NewAPIToken struct {
	records.APIToken
	Token string `json:"token"` // "herald_<id>_<43 characters>"
}

// CreateAPIToken creates a token with a name and scopes. It expires after the duration good; 0: it never expires.
func (o *Operator) CreateAPIToken(ctx context.Context, name string, scopes []string, good time.Duration,
	actor string) (out NewAPIToken, err error) {
	if name = strings.TrimSpace(name); name == "" || len(name) > 100 {
		return out, NewMisuse("a token needs a name of 1 to 100 characters, which the audit names")
	}
	if len(scopes) == 0 {
		return out, NewMisuseOf("scope", "is needed: read, enqueue, operate or direct, several if need be")
	}
	for _, s := range scopes {
		if err := checkWord("scope", s, AllScopes()); err != nil {
			return out, err
		}
	}
	if good < 0 {
		return out, NewMisuseOf("expires-in", "%s is not longer than 0s", good)
	}

	var id [6]byte
	var key [32]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	_, _ = rand.Read(key[:])
	text := base64.RawURLEncoding.EncodeToString(key[:])
	hash := sha256.Sum256([]byte(text))
	slices.Sort(scopes)
	out.APIToken = records.APIToken{ID: hex.EncodeToString(id[:]), Name: name, Scopes: slices.Compact(scopes),
		Hash: hash[:], CreatedAt: time.Now().UTC().Truncate(time.Second)}
	if good > 0 {
		until := out.CreatedAt.Add(good)
		out.ExpiresAt = &until
	}
	out.Token = apiTokenPrefix + out.ID + "_" + text
	what := map[string]any{"token": out.ID, "name": name, "scopes": out.Scopes}
	return out, o.ChangeOne(ctx, actor, "api-token create", what,
		func(st *Session) error { return st.AddAPIToken(ctx, out.APIToken) })
}

// ListAPITokens lists all tokens, including expired and revoked ones, newest first.
func (o *Operator) ListAPITokens(ctx context.Context) (list []records.APIToken, err error) {
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		list, err = st.APITokens(ctx)
		return err
	})
	return list, err
}

// RevokeAPIToken revokes a token.
func (o *Operator) RevokeAPIToken(ctx context.Context, id, actor string) error {
	err := o.ChangeOne(ctx, actor, "api-token revoke", map[string]any{"token": id},
		func(st *Session) error { return st.RevokeAPIToken(ctx, id) })
	if errors.Is(err, ledger.ErrNotFound) {
		return &NotFoundError{fmt.Sprintf("API token %.40q not found, or revoked already: `worker api-token list` "+
			"shows the ids", id)}
	}
	return err
}

// ErrUnknownToken: the token does not exist, is revoked or has expired.
var ErrUnknownToken = errors.New("the token is unknown, revoked or expired")

// IsAPIToken reports whether a token has the form of a token that CreateAPIToken creates.
func IsAPIToken(token secret.Secret) bool {
	_, _, ok := splitAPIToken(token)
	return ok
}

func splitAPIToken(token secret.Secret) (id, key string, ok bool) {
	rest, ok := strings.CutPrefix(token.Reveal(), apiTokenPrefix)
	id, key, cut := strings.Cut(rest, "_")
	return id, key, ok && cut && len(id) == 12 && len(key) == 43
}

// FindCaller returns the caller that a token belongs to, or ErrUnknownToken. If it cannot note the use of a valid
// token, it returns the caller and an error.
type FindCaller func(ctx context.Context, token secret.Secret) (Caller, error)

// LoadCallers loads the valid tokens, and returns a function that finds their callers. The function does not see later
// changes. It notes the first use of a token, unless a use was noted in the minute before.
func (o *Operator) LoadCallers(ctx context.Context) (FindCaller, error) {
	known := make(map[string]*knownToken)
	err := o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		tokens, err := st.APITokens(ctx)
		now := time.Now()
		for _, t := range tokens {
			if t.RevokedAt == nil && (t.ExpiresAt == nil || t.ExpiresAt.After(now)) {
				k := &knownToken{hash: t.Hash, expires: t.ExpiresAt}
				k.caller.Name = fmt.Sprintf("%s (API token %s)", t.Name, t.ID)
				for _, s := range t.Scopes {
					k.caller.Scopes = append(k.caller.Scopes, Scope(s))
				}
				k.noted.Store(t.LastUsedAt != nil && now.Sub(*t.LastUsedAt) < time.Minute)
				known[t.ID] = k
			}
		}
		return err
	})
	return func(ctx context.Context, token secret.Secret) (c Caller, err error) {
		id, key, ok := splitAPIToken(token)
		hash, k := sha256.Sum256([]byte(key)), known[id]
		if !ok || k == nil || !bytes.Equal(k.hash, hash[:]) || k.expires != nil && time.Now().After(*k.expires) {
			return c, ErrUnknownToken
		}
		if !k.noted.Swap(true) {
			err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error { return st.NoteUse(ctx, id) })
		}
		return k.caller, err
	}, err
}

// knownToken is a valid token.
type knownToken struct {
	hash    []byte
	expires *time.Time // nil: never
	caller  Caller
	noted   atomic.Bool // its use need not be noted
}
