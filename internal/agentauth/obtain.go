package agentauth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
)

// readAccess reads the access token that the store has; nil: it has none. One that does not open is as good as none.
func (r *renewer) readAccess(found store.Renewal) *accessToken {
	if found.Access == nil {
		return nil
	}
	a := &accessToken{stored: found.Token.UpdatedAt, sealed: found.Access.Ciphertext}
	kept, err := openAccess(r.Opener, found.Token, *found.Access)
	if err != nil {
		r.Logger.Warn("a stored access token does not open; another one is asked for", "agent", found.Token.ID,
			"origin", found.Token.Origin, "error", err)
		return a
	}
	a.value, a.scope, a.since = secret.New("Bearer "+kept.Access), kept.Scope, kept.Since
	if found.Access.ExpiresAt != nil {
		a.until = *found.Access.ExpiresAt
	}
	return a
}

// openAccess opens what SealAccess made.
func openAccess(keys Opener, t store.Token, a store.Access) (kept sealedAccess, err error) {
	plain, err := keys.Open(a.Ciphertext, t.AccessBinding())
	switch {
	case err != nil:
		return sealedAccess{}, err
	case json.Unmarshal(plain, &kept) != nil || CheckToken(kept.Access) != nil:
		return sealedAccess{}, errors.New("what is stored is no access token")
	}
	return kept, nil
}

// AccessToken opens the access token that is stored for an OAuth credential.
func AccessToken(keys Opener, t store.Token, a store.Access) (secret.Secret, error) {
	kept, err := openAccess(keys, t, a)
	if err != nil {
		return secret.Secret{}, err
	}
	return secret.New(kept.Access), nil
}

// obtainToken asks the authorization server and saves what it gives. Once it is asked, what it answers is saved though
// the delivery is stopped: the refresh token that it was asked with may be of no use any more.
func (r *renewer) obtainToken(ctx context.Context, e tokenRequest, mine leased) (*accessToken, error) {
	cred, err := openCredential(r.Opener, mine.Token)
	if err != nil {
		return nil, err
	}
	last := r.readAccess(mine.Renewal)
	find, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	to, err := r.discover(find, e, mine.Token, cred, last)
	if err != nil {
		return nil, explainFailure(mine.Token, err)
	}
	if r.Now().Sub(mine.began)+askTimeout+saveTimeout > renewLease {
		return nil, errLeaseOver
	}
	ask, cancelAsk := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancelAsk()
	token, err := r.OAuth.Obtain(ask, to.server, to.credential, to.scope)
	if err != nil {
		return nil, explainFailure(mine.Token, err)
	}
	token.Scope = to.scope
	if cred.Grant != oauth.GrantRefreshToken || token.Refresh.IsZero() ||
		token.Refresh.Compare(cred.RefreshToken.Reveal()) {
		return r.saveToken(ctx, mine.Renewal, token, nil)
	}
	replaced := cred.RefreshToken
	cred.RefreshToken = token.Refresh
	return r.saveToken(ctx, mine.Renewal, token, &rotation{cred, replaced})
}

// openCredential opens what the operator stored, or what a renewal made of it.
func openCredential(keys Opener, t store.Token) (oauth.Credential, error) {
	plain, err := keys.Open(t.Ciphertext, t.Binding())
	if err != nil {
		return oauth.Credential{}, fmt.Errorf("the credential stored for %s: %w", t.Origin, err)
	}
	cred, err := oauth.ParseCredential(plain)
	if err != nil {
		return cred, retry.Fail(reason.AuthRequired,
			fmt.Sprintf("the credential stored for %s cannot be used (%v): store it again, %s", t.Origin, err,
				howToStore(t)))
	}
	return cred, nil
}

// discovery is what is asked for, and where.
type discovery struct {
	server     oauth.Server
	credential oauth.Credential
	scope      string
}

// discover finds the authorization server, which must be the one that the credential is for, and the scope to ask for:
// that of the credential, else, of one that a version before stored, that of its last access token. The agent is asked
// when it refused a token, or when the credential does not say what it is for. An agent without a document names nobody
// else.
func (r *renewer) discover(ctx context.Context, e tokenRequest, t store.Token, cred oauth.Credential,
	last *accessToken) (discovery, error) {
	wants := cred.Grant == oauth.GrantClientCredentials // a refresh token has the scope that the login had
	scope := cred.Scope
	if wants && scope == "" && last != nil {
		scope = last.scope
	}
	resource := oauth.Resource{URL: cred.Resource, Issuers: []string{t.Issuer}, Legacy: t.Issuer == string(t.Origin)}
	needed := !e.refused.IsZero() || cred.Resource == ""
	if needed || wants && scope == "" {
		found, err := r.OAuth.Resource(ctx, e.url, e.says)
		switch {
		case err != nil && needed && !(cred.Resource != "" && e.says.Metadata == "" && isDenied(err)):
			return discovery{}, err
		case err != nil: // it names nobody else
		case found.Legacy:
			resource.URL = cmp.Or(resource.URL, found.URL)
		default:
			found.URL = cmp.Or(resource.URL, found.URL)
			resource = found
		}
	}
	server, err := r.OAuth.ServerOf(ctx, resource, t.Issuer)
	if err != nil {
		return discovery{}, err
	}
	cred.Resource = resource.URL
	if !wants {
		return discovery{server, cred, ""}, nil
	}
	return discovery{server, cred, scope}, checkScope(e, t, scope)
}

// isDenied: the agent gives the document to nobody without a token.
func isDenied(err error) bool {
	var document *oauth.MetadataError
	return errors.As(err, &document) && document.Denied
}

// checkScope refuses to ask for more than what was stored: the operator's --scope, or what the agent wanted when he
// stored the credential. An agent that wants more now may be somebody else's, and the operator says whether it may have
// that.
func checkScope(e tokenRequest, t store.Token, stored string) error {
	more := oauth.UnionScopes(stored, e.says.Scope)
	if !e.narrow || more == stored {
		return nil
	}
	option := "--scope …"
	if !strings.Contains(more, "'") { // the agent's words, which a shell must not read
		option = "--scope '" + more + "'"
	}
	return retry.Fail(reason.AuthRequired, fmt.Sprintf("the agent wants more than the operator allowed: if it may have it, %s %s", howToStore(t), option))
}

// sealedAccess is what is sealed.
type sealedAccess struct {
	Access string    `json:"access"`
	Scope  string    `json:"scope,omitempty"` // that was asked for
	Since  time.Time `json:"since"`
}

// SealAccess encrypts an access token for the row of t, the stored credential that it was obtained with.
func SealAccess(keys Sealer, t store.Token, token oauth.Token, now time.Time) (*store.Access, error) {
	plain, err := json.Marshal(sealedAccess{token.Access.Reveal(), token.Scope, now})
	if err != nil {
		return nil, errors.New("seal an access token") // without its text
	}
	a := &store.Access{}
	if a.Ciphertext, err = keys.Seal(plain, t.AccessBinding()); err != nil {
		return nil, err
	}
	if !token.Expires.IsZero() {
		a.ExpiresAt = &token.Expires
	}
	return a, nil
}

// saveToken keeps an access token, and the credential with another refresh token (nil: it stays), for all workers. A
// store that does not take it is asked again for a while, and with what is delivered later; meanwhile this process has
// it, and Redis has the refresh token.
func (r *renewer) saveToken(ctx context.Context, lease store.Renewal, token oauth.Token,
	rotated *rotation) (*accessToken, error) {
	now := r.Now()
	sealed, err := SealAccess(r.Sealer, lease.Token, token, now)
	if err != nil {
		return nil, err
	}
	got := &accessToken{stored: lease.Token.UpdatedAt, sealed: sealed.Ciphertext,
		value: secret.New("Bearer " + token.Access.Reveal()), scope: token.Scope,
		since: now, until: token.Expires}
	u := &unsaved{renewal: lease, access: *sealed}
	if rotated != nil {
		plain, err := rotated.credential.Marshal()
		if err == nil {
			u.credential, err = r.Sealer.Seal(plain, lease.Token.Binding())
		}
		if err == nil {
			err = r.sealForSpool(u, rotated.replaced)
		}
		if err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.SaveTimeout)
	defer cancel()
	within := r.SaveTimeout / 5 // a silent store must not keep Redis waiting: until one of them has it, it dies with this process
	for {
		err := r.saveOnce(ctx, u, within)
		if err == nil || errors.Is(err, store.ErrSuperseded) {
			return got, err
		}
		within = r.SaveTimeout
		timer := time.NewTimer(renewTick)
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
			timer.Stop()
		}
		r.Logger.Error("an access token could not be stored; that is tried again, and until then this process has it",
			logging.About(logging.Postgres), "agent", lease.Token.ID, "origin", lease.Token.Origin,
			"with_refresh_token", rotated != nil, "in_redis", u.spooled.Load(), "error", err)
		got.sealed, got.unsaved = nil, u
		return got, nil
	}
}

// saveOnce gives the store a renewal, and Redis if the store does not take it.
func (r *renewer) saveOnce(ctx context.Context, u *unsaved, within time.Duration) error {
	try, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := r.Ledger.SaveRenewal(try, u.renewal, u.access, u.credential)
	switch {
	case err == nil && u.spooled.Load():
		r.dropSpooled(ctx, spoolKey(*u.spool))
	case err != nil && !errors.Is(err, store.ErrSuperseded):
		r.spoolRenewal(ctx, u)
	}
	return err
}

// retrySave gives the store what it could not be given before. nil without error: it has something newer.
func (r *renewer) retrySave(ctx context.Context, have *accessToken) (*accessToken, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.SaveTimeout)
	defer cancel()
	u := have.unsaved
	switch err := r.saveOnce(ctx, u, r.SaveTimeout); {
	case errors.Is(err, store.ErrSuperseded):
		return nil, nil
	case err != nil:
		return nil, &renewalError{text: fmt.Sprintf("the last access token could not be stored: %v", err), cause: err,
			again: true}
	}
	saved := *have
	saved.sealed, saved.unsaved = u.access.Ciphertext, nil
	return &saved, nil
}

// flush is retrySave of all, before the process ends.
func (r *renewer) flush(ctx context.Context) {
	for _, to := range r.known.Keys() {
		have, ok := r.known.Peek(to)
		if !ok || have.unsaved == nil {
			continue
		}
		saved, err := r.retrySave(ctx, have)
		switch {
		case err != nil && have.unsaved.spooled.Load():
			r.Logger.Warn("an access token is lost with this process; its refresh token waits in Redis",
				"agent", to.agent.ID, "origin", to.origin, "error", err)
		case err != nil:
			r.Logger.Error("an access token is lost with this process", "agent", to.agent.ID, "origin", to.origin,
				"with_refresh_token", have.unsaved.credential != nil, "error", err)
		case saved != nil:
			r.known.Add(to, saved)
		}
	}
}
