package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// readAccess decrypts the access token in the store; nil if the store has none. A token that cannot be decrypted is
// logged and returned as unusable.
func (z *Authorizer) readAccess(found records.Renewal) *accessToken {
	if found.Access == nil {
		return nil
	}
	a := &accessToken{stored: found.Token.UpdatedAt, path: found.Token.Path, sealed: found.Access.Ciphertext}
	kept, err := openAccess(z.Keys, found.Token, *found.Access)
	if err != nil {
		z.Logger.Warn("a stored access token does not open; another one is asked for", "agent", found.Token.ID,
			"origin", found.Token.Origin, "error", err)
		return a
	}
	a.value, a.scope, a.since = secret.New("Bearer "+kept.Access), kept.Scope, kept.Since
	if found.Access.ExpiresAt != nil {
		a.until = *found.Access.ExpiresAt
	}
	return a
}

// openAccess decrypts the output of SealAccess.
func openAccess(keys Keys, t records.Token, a records.Access) (kept sealedAccess, err error) {
	plain, err := keys.Open(a.Ciphertext, t.AccessBinding())
	switch {
	case err != nil:
		return sealedAccess{}, err
	case json.Unmarshal(plain, &kept) != nil || CheckToken(kept.Access) != nil:
		return sealedAccess{}, errors.New("the stored secret is not an access token")
	}
	return kept, nil
}

// AccessToken decrypts the access token that is stored for an OAuth credential.
func AccessToken(keys Keys, t records.Token, a records.Access) (secret.Secret, error) {
	kept, err := openAccess(keys, t, a)
	if err != nil {
		return secret.Secret{}, err
	}
	return secret.New(kept.Access), nil
}

// obtainToken requests an access token from the authorization server and saves it. From the request on it ignores the
// cancellation of ctx, because the server may already have invalidated the refresh token that was used.
func (z *Authorizer) obtainToken(ctx context.Context, e tokenRequest, mine leased) (*accessToken, error) {
	cred, err := openCredential(z.Keys, mine.Token)
	if err != nil {
		return nil, err
	}
	last := z.readAccess(mine.Renewal)
	find, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	began := z.Now()
	to, err := z.findIssuer(find, e, mine.Token, cred, last)
	addCost(ctx, z.Now().Sub(began))
	if err != nil {
		return nil, explainFailure(mine.Token, err)
	}
	// The monotonic clock does not run while the machine is suspended, so the wall clock counts too.
	now := z.Now()
	if max(now.Sub(mine.began), now.Round(0).Sub(mine.began.Round(0)))+askTimeout+saveTimeout > renewLease {
		return nil, errLeaseOver
	}
	ask, cancelAsk := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancelAsk()
	began = z.Now()
	token, err := z.OAuth.Obtain(ask, to.server, to.credential, to.scope)
	addCost(ctx, z.Now().Sub(began))
	if err != nil {
		return nil, explainFailure(mine.Token, err)
	}
	token.Scope = to.scope
	if cred.Grant != oauth.GrantRefreshToken || token.Refresh.IsZero() ||
		token.Refresh.Compare(cred.RefreshToken.Reveal()) {
		return z.saveToken(ctx, mine.Renewal, token, nil)
	}
	replaced := cred.RefreshToken
	cred.RefreshToken = token.Refresh
	return z.saveToken(ctx, mine.Renewal, token, &rotation{cred, replaced})
}

// openCredential decrypts the credential that the operator stored or a renewal updated.
func openCredential(keys Keys, t records.Token) (oauth.Credential, error) {
	plain, err := keys.Open(t.Ciphertext, t.Binding())
	if err != nil {
		return oauth.Credential{}, fmt.Errorf("the credential stored for %s: %w", t.Origin, err)
	}
	cred, err := oauth.ParseCredential(plain)
	if err != nil {
		return cred, outcome.Fail(outcome.AuthRequired,
			fmt.Sprintf("the credential stored for %s cannot be used (%v): store it again, %s", t.Origin, err,
				howToStore(t)))
	}
	return cred, nil
}

// discovery is the result of findIssuer: the server, the credential and the scope of a token request.
type discovery struct {
	server     oauth.Server
	credential oauth.Credential
	scope      string
}

// findIssuer finds the authorization server, which must be that of the credential, and the scope to request.
// The scope is that of the credential, or else that of the last access token, for a credential of an earlier version.
// findIssuer reads the agent's metadata if the agent refused a token or if the credential has no resource. An agent
// without metadata names no other server.
func (z *Authorizer) findIssuer(ctx context.Context, e tokenRequest, t records.Token, cred oauth.Credential,
	last *accessToken) (discovery, error) {
	wants := cred.Grant == oauth.GrantClientCredentials // a refresh token has the scope of its login
	scope := cred.Scope
	if wants && scope == "" && last != nil {
		scope = last.scope
	}
	resource := oauth.Resource{URL: cred.Resource, Issuers: []string{t.Issuer}, Legacy: t.Issuer == string(t.Origin)}
	needed := !e.refused.IsZero() || cred.Resource == ""
	if needed || wants && scope == "" {
		found, err := z.OAuth.Resource(ctx, e.url, e.says)
		switch {
		case err != nil && needed && !(cred.Resource != "" && e.says.Metadata == "" && isDenied(err)):
			return discovery{}, err
		case err != nil: // without metadata the agent names no other server
		case found.Legacy:
			resource.URL = cmp.Or(resource.URL, found.URL)
		default:
			found.URL = cmp.Or(resource.URL, found.URL)
			resource = found
		}
	}
	server, err := z.OAuth.ServerOf(ctx, resource, t.Issuer)
	if err != nil {
		return discovery{}, err
	}
	cred.Resource = resource.URL
	if !wants {
		return discovery{server, cred, ""}, nil
	}
	return discovery{server, cred, scope}, checkScope(e, t, scope)
}

// isDenied reports whether the agent requires a token for its metadata document.
func isDenied(err error) bool {
	var document *oauth.MetadataError
	return errors.As(err, &document) && document.Denied
}

// checkScope returns an error if the agent requires more scopes than were stored with the credential: the operator's
// --scope, or the agent's scopes at that time. The agent may have a new owner, so the operator must decide about more
// scopes.
func checkScope(e tokenRequest, t records.Token, stored string) error {
	more := oauth.UnionScopes(stored, e.says.Scope)
	if !e.narrow || more == stored {
		return nil
	}
	return outcome.Fail(outcome.AuthRequired, fmt.Sprintf("the agent wants more than the operator allowed: "+
		"if it may have it, %s %s", howToStore(t), scopeOption(more)))
}

// scopeOption returns the --scope option for scopes of which the agent named some. An empty scope is unknown.
func scopeOption(scope string) string {
	if scope == "" || strings.Contains(scope, "'") { // the shell must not interpret the agent's text
		return "--scope …"
	}
	return "--scope '" + scope + "'"
}

// sealedAccess is the plaintext of a stored access token.
type sealedAccess struct {
	Access string    `json:"access"`
	Scope  string    `json:"scope,omitempty"` // the requested scope
	Since  time.Time `json:"since"`
}

// SealAccess encrypts an access token for the row of t, the credential that it was obtained with.
func SealAccess(keys Keys, t records.Token, token oauth.Token, now time.Time) (*records.Access, error) {
	plain, err := json.Marshal(sealedAccess{token.Access.Reveal(), token.Scope, now})
	if err != nil {
		return nil, errors.New("seal an access token") // err could contain the token
	}
	a := &records.Access{}
	if a.Ciphertext, err = keys.Seal(plain, t.AccessBinding()); err != nil {
		return nil, err
	}
	if !token.Expires.IsZero() {
		a.ExpiresAt = &token.Expires
	}
	return a, nil
}

// saveToken stores an access token for all workers and, if rotated is not nil, the credential with its new refresh
// token. If the store fails, it retries until SaveTimeout; after that, later deliveries retry. In the meantime this
// process keeps the token, and Redis the refresh token.
func (z *Authorizer) saveToken(ctx context.Context, lease records.Renewal, token oauth.Token,
	rotated *rotation) (*accessToken, error) {
	now := z.Now()
	sealed, err := SealAccess(z.Keys, lease.Token, token, now)
	if err != nil {
		return nil, err
	}
	got := &accessToken{stored: lease.Token.UpdatedAt, path: lease.Token.Path, sealed: sealed.Ciphertext,
		value: secret.New("Bearer " + token.Access.Reveal()), scope: token.Scope,
		since: now, until: token.Expires}
	u := &unsaved{renewal: lease, access: *sealed}
	if rotated != nil {
		plain, err := rotated.credential.Marshal()
		if err == nil {
			u.credential, err = z.Keys.Seal(plain, lease.Token.Binding())
		}
		if err == nil {
			err = z.sealForSpool(u, rotated.replaced)
		}
		if err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), z.SaveTimeout)
	defer cancel()
	// A slow store must not delay the save to Redis: until one of them has the token, a crash of this process loses it.
	within := z.SaveTimeout / 5
	for {
		err := z.saveOnce(ctx, u, within)
		if err == nil || errors.Is(err, records.ErrSuperseded) {
			return got, err
		}
		within = z.SaveTimeout
		if loop.Pause(ctx, renewTick) == nil {
			continue
		}
		z.Logger.Error("an access token could not be stored; that is tried again, and until then this process has it",
			logging.About(logging.Postgres), "agent", lease.Token.ID, "origin", lease.Token.Origin,
			"with_refresh_token", rotated != nil, "in_redis", u.spooled.Load(), "error", err)
		got.sealed, got.unsaved = nil, u
		return got, nil
	}
}

// saveOnce saves a renewal to the store, and to Redis if the store fails.
func (z *Authorizer) saveOnce(ctx context.Context, u *unsaved, within time.Duration) error {
	try, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := z.Records.SaveRenewal(try, u.renewal, u.access, u.credential)
	switch {
	case err == nil && u.spooled.Load():
		z.dropSpooled(ctx, spoolKey(*u.spool))
	case err != nil && !errors.Is(err, records.ErrSuperseded):
		z.spoolRenewal(ctx, u)
	}
	return err
}

// retrySave saves a renewal whose saving failed before. It returns nil without an error if the store has a newer one.
func (z *Authorizer) retrySave(ctx context.Context, have *accessToken) (*accessToken, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), z.SaveTimeout)
	defer cancel()
	u := have.unsaved
	switch err := z.saveOnce(ctx, u, z.SaveTimeout); {
	case errors.Is(err, records.ErrSuperseded):
		return nil, nil
	case err != nil:
		return nil, &renewalError{text: fmt.Sprintf("the last access token could not be stored: %v", err), cause: err,
			again: true}
	}
	saved := *have
	saved.sealed, saved.unsaved = u.access.Ciphertext, nil
	return &saved, nil
}

// Flush tries once more to save renewals that the store has not stored. Call it before the process ends.
func (z *Authorizer) Flush(ctx context.Context) {
	if z == nil {
		return
	}
	for _, to := range z.access.Keys() {
		have, ok := z.access.Peek(to)
		if !ok || have.unsaved == nil {
			continue
		}
		saved, err := z.retrySave(ctx, have)
		switch {
		case err != nil && have.unsaved.spooled.Load():
			z.Logger.Warn("an access token is lost with this process; its refresh token waits in Redis",
				"agent", to.agent.ID, "origin", to.origin, "error", err)
		case err != nil:
			z.Logger.Error("an access token is lost with this process", "agent", to.agent.ID, "origin", to.origin,
				"with_refresh_token", have.unsaved.credential != nil, "error", err)
		case saved != nil:
			z.access.Add(to, saved)
		}
	}
}
