package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/records"
)

// RenewalSpool keeps renewals in Redis that Postgres cannot store. The authorization server has already replaced the
// refresh token that Postgres has, and may end the whole grant if that one is used again. Every renewal reads the spool
// first.
type RenewalSpool interface {
	Put(ctx context.Context, key string, sealed []byte) error
	Get(ctx context.Context, key string) ([]byte, error) // nil: there is no entry
	Delete(ctx context.Context, key string) error
}

// spooledRenewal is the plaintext of an entry. It contains both ciphertexts in the form for Postgres.
type spooledRenewal struct {
	Access     []byte     `json:"access"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"` // of the access token
	Credential []byte     `json:"credential"`          // with the newest refresh token
}

// rotation is a credential with a new refresh token.
type rotation struct {
	credential oauth.Credential
	replaced   secret.Secret // the previous refresh token
}

// spoolTimeout bounds one request to Redis.
const spoolTimeout = 2 * time.Second

// spoolBinding returns the binding of a spooled renewal. It identifies one stored version of a credential and the
// refresh token that was replaced. Storing or renewing the credential changes it, so that an entry older than the row
// is never taken for a newer one.
func spoolBinding(t records.Token, replaced secret.Secret) secret.Binding {
	b := t.Binding()
	b.Purpose = "agent_mcp_tokens.renewal.v1"
	sum := sha256.Sum256([]byte(replaced.Reveal()))
	b.Generation = fmt.Sprintf("%d/%x", t.UpdatedAt.UnixMicro(), sum)
	return b
}

// spoolKey returns the key of an entry in Redis. Every generation has its own key, so that no newer entry is replaced
// or dropped.
func spoolKey(b secret.Binding) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s %s %s", b.ChainID, b.Registry, b.AgentID, b.Origin, b.Generation))
	return hex.EncodeToString(sum[:])
}

// spoolRenewal puts a renewal that Postgres did not store into Redis, unless it is already there.
func (z *Authorizer) spoolRenewal(ctx context.Context, u *unsaved) {
	if u.spool == nil || z.Spool == nil || u.spooled.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoolTimeout)
	defer cancel()
	t := u.renewal.Token
	if err := z.Spool.Put(ctx, spoolKey(*u.spool), u.spoolText); err != nil {
		z.Logger.Warn("neither Postgres nor Redis accepts a renewed refresh token; this process keeps it in memory",
			"agent", t.ID,
			"origin", t.Origin, "error", err)
		return
	}
	u.spooled.Store(true)
	z.Logger.Info("Postgres does not accept a renewed refresh token; Redis keeps it, sealed, for the next renewal",
		"agent", t.ID, "origin", t.Origin)
}

// sealForSpool encrypts the entry for spoolRenewal. It does nothing if the refresh token did not change.
func (z *Authorizer) sealForSpool(u *unsaved, replaced secret.Secret) error {
	if u.credential == nil || z.Spool == nil {
		return nil
	}
	plain, err := json.Marshal(spooledRenewal{u.access.Ciphertext, u.access.ExpiresAt, u.credential})
	if err != nil {
		return errors.New("seal a renewed refresh token") // err could contain the token
	}
	b := spoolBinding(u.renewal.Token, replaced)
	u.spoolText, err = z.Keys.Seal(plain, b)
	u.spool = &b
	return err
}

// dropSpooled deletes an entry from Redis after Postgres has stored it. If that fails, no later credential matches the
// entry.
func (z *Authorizer) dropSpooled(ctx context.Context, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spoolTimeout)
	defer cancel()
	if err := z.Spool.Delete(ctx, key); err != nil {
		z.Logger.Debug("a renewed refresh token that Postgres has stays in Redis for a while", "error", err)
	}
}

// adoptSpooled looks in Redis for a renewal that follows on the leased credential, and stores it in Postgres. That ends
// the lease, and the caller continues with the stored token. It returns nil without an error if there is no such
// renewal. If Redis does not answer, it returns an error, and no token is requested.
func (z *Authorizer) adoptSpooled(ctx context.Context, mine leased) (*accessToken, error) {
	if z.Spool == nil || mine.Token.Scheme != records.SchemeAuthorizationCode {
		return nil, nil
	}
	cred, err := openCredential(z.Keys, mine.Token)
	if err != nil {
		return nil, err
	}
	found, key, err := readSpooled(ctx, z.Spool, z.Keys, mine.Token, cred)
	if err != nil || found == nil {
		return nil, err
	}
	renewal := records.Renewal{Token: mine.Token, No: mine.No,
		Access: &records.Access{Ciphertext: found.Access, ExpiresAt: found.ExpiresAt}}
	save, cancel := context.WithTimeout(context.WithoutCancel(ctx), z.SaveTimeout)
	defer cancel()
	if err := z.Records.SaveRenewal(save, renewal, *renewal.Access, found.Credential); err != nil {
		return nil, err
	}
	z.dropSpooled(ctx, key)
	z.Logger.Info("a renewed refresh token that Postgres could not take before was found in Redis and stored",
		"agent", mine.Token.ID, "origin", mine.Token.Origin)
	return z.readAccess(renewal), nil
}

// readSpooled reads and decrypts the entry that follows on a credential. It returns nil without an error if Redis has
// no such entry.
func readSpooled(ctx context.Context, spool RenewalSpool, keys Keys, t records.Token,
	cred oauth.Credential) (found *spooledRenewal, key string, err error) {
	b := spoolBinding(t, cred.RefreshToken)
	key = spoolKey(b)
	ctx, cancel := context.WithTimeout(ctx, spoolTimeout)
	defer cancel()
	sealed, err := spool.Get(ctx, key)
	if err != nil {
		return nil, key, outcome.Fail(outcome.InternalError,
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

// LatestCredential decrypts the OAuth credential of t, with the newest refresh token, which may be in Redis if Postgres
// could not store it. spool may be nil: there is no Redis.
func LatestCredential(ctx context.Context, spool RenewalSpool, keys Keys, t records.Token) (oauth.Credential, error) {
	cred, err := openCredential(keys, t)
	if err != nil || spool == nil || t.Scheme != records.SchemeAuthorizationCode {
		return cred, err
	}
	found, _, err := readSpooled(ctx, spool, keys, t, cred)
	if err != nil || found == nil {
		return cred, err
	}
	t.Ciphertext = found.Credential
	return openCredential(keys, t)
}
