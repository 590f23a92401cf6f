package agentauth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
)

// RenewalSpool is Redis, where a renewal waits that Postgres cannot take: the authorization server has replaced the
// refresh token that Postgres has, and may end the whole grant if that one is used again. Whoever renews next looks
// here first.
type RenewalSpool interface {
	SpoolRenewal(ctx context.Context, key string, sealed []byte) error
	SpooledRenewal(ctx context.Context, key string) ([]byte, error) // nil: nothing
	DropRenewal(ctx context.Context, key string) error
}

// spooledRenewal is what is sealed there: both ciphertexts as Postgres is to have them.
type spooledRenewal struct {
	Access     []byte     `json:"access"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"` // of the access token
	Credential []byte     `json:"credential"`          // with the refresh token that came last
}

// rotation is a credential with another refresh token.
type rotation struct {
	credential oauth.Credential
	replaced   secret.Secret // the refresh token that it had before
}

// spoolTimeout bounds one request of Redis.
const spoolTimeout = 2 * time.Second

// spoolBinding is what a spooled renewal belongs to: one credential as it was stored, and the refresh token that was
// replaced. A credential that was stored or renewed since has another, so that nothing older than the row is ever taken
// for newer.
func spoolBinding(t store.Token, replaced secret.Secret) secret.Binding {
	b := t.Binding()
	b.Purpose = "agent_mcp_tokens.renewal.v1"
	sum := sha256.Sum256([]byte(replaced.Reveal()))
	b.Generation = fmt.Sprintf("%d/%x", t.UpdatedAt.UnixMicro(), sum)
	return b
}

// spoolKey is where Redis has it: a key of its own for every generation, so that nothing newer is replaced or dropped.
func spoolKey(b secret.Binding) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s %s %s", b.ChainID, b.Registry, b.AgentID, b.Origin, b.Generation))
	return hex.EncodeToString(sum[:])
}

// spoolRenewal puts into Redis what Postgres did not take, unless it is there.
func (r *renewer) spoolRenewal(ctx context.Context, u *unsaved) {
	if u.spool == nil || r.Spool == nil || u.spooled.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoolTimeout)
	defer cancel()
	t := u.renewal.Token
	if err := r.Spool.SpoolRenewal(ctx, spoolKey(*u.spool), u.spoolText); err != nil {
		r.Logger.Warn("neither Postgres nor Redis takes a renewed refresh token; this process keeps it", "agent", t.ID,
			"origin", t.Origin, "error", err)
		return
	}
	u.spooled.Store(true)
	r.Logger.Info("Postgres does not take a renewed refresh token; Redis keeps it, sealed, for whoever renews next",
		"agent", t.ID, "origin", t.Origin)
}

// sealForSpool prepares what spool puts into Redis; without another refresh token that is nothing.
func (r *renewer) sealForSpool(u *unsaved, replaced secret.Secret) error {
	if u.credential == nil || r.Spool == nil {
		return nil
	}
	plain, err := json.Marshal(spooledRenewal{u.access.Ciphertext, u.access.ExpiresAt, u.credential})
	if err != nil {
		return errors.New("seal a renewed refresh token") // without its text
	}
	b := spoolBinding(u.renewal.Token, replaced)
	u.spoolText, err = r.Sealer.Seal(plain, b)
	u.spool = &b
	return err
}

// dropSpooled ends what Redis has once Postgres has it. What stays opens for nobody any more.
func (r *renewer) dropSpooled(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoolTimeout)
	defer cancel()
	if err := r.Spool.DropRenewal(ctx, key); err != nil {
		r.Logger.Debug("a renewed refresh token that Postgres has stays in Redis for a while", "error", err)
	}
}

// adoptSpooled gives Postgres the renewal that it could not take before, if Redis has one that follows on the leased
// credential: then that is where to go on from, and the lease is over. nil without error: there is none. Without an
// answer of Redis nobody is asked for a token.
func (r *renewer) adoptSpooled(ctx context.Context, mine leased) (*accessToken, error) {
	if r.Spool == nil || mine.Token.Scheme != store.SchemeAuthorizationCode {
		return nil, nil
	}
	cred, err := openCredential(r.Opener, mine.Token)
	if err != nil {
		return nil, err
	}
	found, key, err := readSpooled(ctx, r.Spool, r.Opener, mine.Token, cred)
	if err != nil || found == nil {
		return nil, err
	}
	renewal := store.Renewal{Token: mine.Token, No: mine.No,
		Access: &store.Access{Ciphertext: found.Access, ExpiresAt: found.ExpiresAt}}
	save, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.SaveTimeout)
	defer cancel()
	if err := r.Ledger.SaveRenewal(save, renewal, *renewal.Access, found.Credential); err != nil {
		return nil, err
	}
	r.dropSpooled(ctx, key)
	r.Logger.Info("a renewed refresh token that Postgres could not take before was found in Redis and stored",
		"agent", mine.Token.ID, "origin", mine.Token.Origin)
	return r.readAccess(renewal), nil
}

// readSpooled looks for what follows on a credential; nil without error: nothing.
func readSpooled(ctx context.Context, spool RenewalSpool, keys Opener, t store.Token,
	cred oauth.Credential) (found *spooledRenewal, key string, err error) {
	b := spoolBinding(t, cred.RefreshToken)
	key = spoolKey(b)
	ctx, cancel := context.WithTimeout(ctx, spoolTimeout)
	defer cancel()
	sealed, err := spool.SpooledRenewal(ctx, key)
	if err != nil {
		return nil, key, retry.Fail(reason.InternalError,
			fmt.Sprintf("no access token for %s: whether a newer refresh token waits in Redis is not known: %v",
				t.Origin, err))
	}
	if sealed == nil {
		return nil, key, nil
	}
	plain, err := keys.Open(sealed, b)
	if err != nil {
		return nil, key, fmt.Errorf("the renewed refresh token for %s that waits in Redis: %w", t.Origin, err)
	}
	found = &spooledRenewal{}
	if err := json.Unmarshal(plain, found); err != nil {
		return nil, key, fmt.Errorf("the renewed refresh token for %s that waits in Redis cannot be read", t.Origin)
	}
	return found, key, nil
}

// LatestCredential opens the OAuth credential that t stores, with the newest refresh token: Redis may have one that
// Postgres could not take. spool may be nil: there is no Redis.
func LatestCredential(ctx context.Context, spool RenewalSpool, keys Opener, t store.Token) (oauth.Credential, error) {
	cred, err := openCredential(keys, t)
	if err != nil || spool == nil || t.Scheme != store.SchemeAuthorizationCode {
		return cred, err
	}
	found, _, err := readSpooled(ctx, spool, keys, t, cred)
	if err != nil || found == nil {
		return cred, err
	}
	t.Ciphertext = found.Credential
	return openCredential(keys, t)
}
