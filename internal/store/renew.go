package store

import (
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/secret"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrSuperseded means that the access token was renewed by somebody else, or its credential replaced, while this worker
// renewed it. The write changed nothing.
var ErrSuperseded = errors.New("the access token was renewed by another worker, or its credential was replaced, meanwhile")

// Access is an access token that was had for an OAuth credential, sealed under Token.AccessBinding.
type Access struct {
	Ciphertext []byte
	ExpiresAt  *time.Time // nil: the authorization server did not say
}

// Renewal is what LeaseRenewal found.
type Renewal struct {
	Token  Token   // the credential as it is now
	Access *Access // as it is now; nil: there is none
	No     int64   // the renewal that was begun; 0: none
}

// LeaseRenewal begins to renew the access token of t's agent and origin, for this worker alone until the lease ends:
// SaveRenewal or YieldRenewal ends it before. seen is the access token that is to be replaced (nil: none is known). It
// does not begin when somebody else renews it, or when it was replaced already: then Renewal.No is 0, and Access tells
// which. A lease of 0 only looks. ErrNotFound: no credential is stored any more. One round trip.
func (s *Store) LeaseRenewal(ctx context.Context, t Token, seen []byte, lease time.Duration) (r Renewal, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "renew the access token of agent %d:%s for %s", t.ChainID, t.ID, t.Origin)
	b := &pgx.Batch{}
	if lease > 0 {
		b.Queue(statement("lease_renewal"), t.ChainID, t.Registry, t.ID, t.Origin, lease, seen).
			QueryRow(func(row pgx.Row) error { return noRows(row.Scan(&r.No), nil) })
	}
	var access Access
	b.Queue(`SELECT `+tokenColumns+`, x.ciphertext, x.expires_at FROM herald.agent_mcp_tokens t
		LEFT JOIN herald.agent_mcp_access x USING (chain_id, identity_registry, agent_id, origin)
		WHERE t.chain_id = $1 AND t.identity_registry = $2 AND t.agent_id = $3 AND t.origin = $4`, t.ChainID, t.Registry, t.ID, t.Origin).
		QueryRow(func(row pgx.Row) error {
			return row.Scan(append(r.Token.scanColumns(), &access.Ciphertext, &access.ExpiresAt)...)
		})
	err = noRows(s.pool.SendBatch(ctx, b).Close(), ErrNotFound)
	if isForeignKeyViolation(err) {
		err = ErrNotFound
	}
	if err != nil {
		return Renewal{}, err
	}
	if access.Ciphertext != nil {
		r.Access = &access
	}
	return r, nil
}

// isForeignKeyViolation: the credential went between being looked for and the row that needs it.
func isForeignKeyViolation(err error) bool {
	var pe *pgconn.PgError
	const foreignKeyViolation = "23503"
	return errors.As(err, &pe) && pe.Code == foreignKeyViolation
}

// SaveRenewal ends a renewal: it keeps the access token, and the credential's new ciphertext when the authorization
// server gave another refresh token (nil: it stays). Both or nothing; calling it again is harmless. ErrSuperseded: the
// lease ended and somebody else renewed, or the credential was replaced.
func (s *Store) SaveRenewal(ctx context.Context, r Renewal, a Access, credential []byte) (err error) {
	t := r.Token
	key, ok := secret.KeyID(a.Ciphertext)
	if !ok || r.No == 0 {
		return errors.New("a renewal is saved by its number, with a ciphertext")
	}
	rotated, ok := secret.KeyID(credential)
	if !ok && credential != nil {
		return errors.New("a credential is saved as a ciphertext")
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "save the access token of agent %d:%s for %s", t.ChainID, t.ID, t.Origin)
	var done bool
	err = s.pool.QueryRow(ctx, statement("save_renewal"), namedStatement("save_renewal").args(pgx.NamedArgs{
		"chain_id": t.ChainID, "registry": t.Registry, "agent_id": t.ID, "origin": t.Origin, "renewal": r.No,
		"stored_at":  t.UpdatedAt,
		"ciphertext": a.Ciphertext, "key_id": int64(key), "expires_at": a.ExpiresAt,
		"credential": credential, "credential_key_id": int64(rotated)})...).Scan(&done)
	return noRows(err, ErrSuperseded)
}

// YieldRenewal ends a renewal that came to nothing, so that another worker may try at once. It is harmless when the
// lease has ended, or the credential was replaced, whose renewals count from 1 again.
func (s *Store) YieldRenewal(ctx context.Context, r Renewal) (err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	t := r.Token
	defer wrapError(&err, "give up renewing the access token of agent %d:%s for %s", t.ChainID, t.ID, t.Origin)
	_, err = s.pool.Exec(ctx, `UPDATE herald.agent_mcp_access SET renewing_until = NULL
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND renew_no = $5 AND EXISTS (SELECT FROM herald.agent_mcp_tokens
			WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND updated_at = $6)`,
		t.ChainID, t.Registry, t.ID, t.Origin, r.No, t.UpdatedAt)
	return err
}

// setAccess puts t.Access in the place of what was had for the credential before: perhaps nothing.
func setAccess(ctx context.Context, tx pgx.Tx, t Token) error {
	_, err := tx.Exec(ctx, `DELETE FROM herald.agent_mcp_access WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4`,
		t.ChainID, t.Registry, t.ID, t.Origin)
	if err != nil || t.Access == nil {
		return err
	}
	key, ok := secret.KeyID(t.Access.Ciphertext)
	if !ok || !t.OAuth() {
		return errors.New("an access token is stored as a ciphertext, with an OAuth credential")
	}
	_, err = tx.Exec(ctx, `INSERT INTO herald.agent_mcp_access (chain_id, identity_registry, agent_id, origin, ciphertext, key_id, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`, t.ChainID, t.Registry, t.ID, t.Origin, t.Access.Ciphertext, int64(key), t.Access.ExpiresAt)
	return err
}

// AccessAfter lists the credentials that an access token is stored for, as TokensAfter does: with that, in
// Token.Access.
func (s *Store) AccessAfter(ctx context.Context, last *Token) (list []Token, err error) {
	defer wrapError(&err, "list access tokens")
	return s.listTokens(ctx, `SELECT `+tokenColumns+`, x.ciphertext, x.expires_at FROM herald.agent_mcp_tokens t
		JOIN herald.agent_mcp_access x USING (chain_id, identity_registry, agent_id, origin) WHERE x.ciphertext IS NOT NULL`, last,
		func(row pgx.CollectableRow) (t Token, err error) {
			t.Access = &Access{}
			return t, row.Scan(append(t.scanColumns(), &t.Access.Ciphertext, &t.Access.ExpiresAt)...)
		})
}

// ResealAccess replaces the ciphertext of an access token, if it is still the one that was read. changed false: it was
// renewed or removed meanwhile.
func (s *Store) ResealAccess(ctx context.Context, old Token, ciphertext []byte) (changed bool, err error) {
	defer wrapError(&err, "seal the access token of agent %d:%s for %s anew", old.ChainID, old.ID, old.Origin)
	return s.replaceCiphertext(ctx, "agent_mcp_access", old, old.Access.Ciphertext, ciphertext)
}
