package records

import (
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrSuperseded is returned by SaveRenewal if, during the renewal, another worker renewed the access token, or the
// credential was replaced. The call stored nothing.
var ErrSuperseded = errors.New("the access token was renewed by another worker, or its credential was replaced")

// Access is a sealed access token, which an authorization server issued for an OAuth credential. Token.AccessBinding is
// its associated data.
type Access struct {
	Ciphertext []byte
	ExpiresAt  *time.Time // nil: the authorization server named no expiry
}

// Renewal is the result of LeaseRenewal.
type Renewal struct {
	Token  Token   // the stored credential
	Access *Access // the stored access token; nil: none
	No     int64   // number of the renewal that began; 0: none began
}

// LeaseRenewal begins a renewal of the access token for the agent and origin of t. No other worker can begin one until
// the lease ends, or SaveRenewal or YieldRenewal is called. seen is the ciphertext of the access token to replace; nil:
// the caller has none.
//
// No renewal begins, and Renewal.No is 0, if another worker is renewing the token, or if the stored access token
// differs from the caller's (seen). If lease is 0, LeaseRenewal only reads. LeaseRenewal returns ErrNotFound if the
// credential does not exist. It costs one round trip.
func (s *Store) LeaseRenewal(ctx context.Context, t Token, seen []byte, lease time.Duration) (r Renewal, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "renew the access token of agent %s for %s", t.Agent, t.Origin)
	defer end()
	b := &pgx.Batch{}
	if lease > 0 {
		b.Queue(statements.Text("lease_renewal"), t.ChainID, t.Registry, t.ID, t.Origin, lease, seen).
			QueryRow(func(row pgx.Row) error { return postgres.NoRows(row.Scan(&r.No), nil) })
	}
	var access Access
	b.Queue(`SELECT `+tokenColumns+`, x.ciphertext, x.expires_at FROM herald.agent_mcp_tokens t
		LEFT JOIN herald.agent_mcp_access x USING (chain_id, identity_registry, agent_id, origin)
		WHERE t.chain_id = $1 AND t.identity_registry = $2 AND t.agent_id = $3 AND t.origin = $4`,
		t.ChainID, t.Registry, t.ID, t.Origin).
		QueryRow(func(row pgx.Row) error {
			return row.Scan(append(r.Token.scanColumns(), &access.Ciphertext, &access.ExpiresAt)...)
		})
	err = postgres.NoRows(s.db.Conns.SendBatch(ctx, b).Close(), ledger.ErrNotFound)
	if isForeignKeyViolation(err) {
		err = ledger.ErrNotFound
	}
	if err != nil {
		return Renewal{}, err
	}
	if access.Ciphertext != nil {
		r.Access = &access
	}
	return r, nil
}

// isForeignKeyViolation reports whether err is Postgres' error foreign_key_violation (23503). An insert gets it if a
// concurrent transaction deleted the credential to which the new row refers.
func isForeignKeyViolation(err error) bool {
	var pe *pgconn.PgError
	const foreignKeyViolation = "23503"
	return errors.As(err, &pe) && pe.Code == foreignKeyViolation
}

// SaveRenewal ends the renewal r. It stores the access token a, and the new ciphertext of the credential if the
// authorization server issued another refresh token (credential; nil: unchanged). It stores both or neither. Calling it
// again is harmless. It returns ErrSuperseded if another renewal has begun after the lease ended, or if the credential
// was replaced.
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
	ctx, end := s.db.StartCall(ctx, &err, "save the access token of agent %s for %s", t.Agent, t.Origin)
	defer end()
	var done bool
	err = s.db.Conns.QueryRow(ctx, statements.Text("save_renewal"), statements.Named("save_renewal").Args(pgx.NamedArgs{
		"chain_id": t.ChainID, "registry": t.Registry, "agent_id": t.ID, "origin": t.Origin, "renewal": r.No,
		"stored_at":  t.UpdatedAt,
		"ciphertext": a.Ciphertext, "key_id": int64(key), "expires_at": a.ExpiresAt,
		"credential": credential, "credential_key_id": int64(rotated)})...).Scan(&done)
	return postgres.NoRows(err, ErrSuperseded)
}

// YieldRenewal ends the renewal r, which failed, so that another worker may try at once. It changes nothing if another
// renewal has begun or the credential was replaced. r.No alone does not identify a renewal, because the numbers begin
// at 1 again for a new credential.
func (s *Store) YieldRenewal(ctx context.Context, r Renewal) (err error) {
	t := r.Token
	ctx, end := s.db.StartCall(ctx, &err, "give up renewing the access token of agent %s for %s", t.Agent, t.Origin)
	defer end()
	_, err = s.db.Conns.Exec(ctx, `UPDATE herald.agent_mcp_access SET renewing_until = NULL
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND renew_no = $5
		AND EXISTS (SELECT FROM herald.agent_mcp_tokens
			WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND updated_at = $6)`,
		t.ChainID, t.Registry, t.ID, t.Origin, r.No, t.UpdatedAt)
	return err
}

// setAccess replaces the access token and the lease that belong to the previous credential. It stores t.Access, which
// may be nil. For an OAuth credential it updates the row: a concurrent LeaseRenewal may just have inserted it, and then
// it is not yet visible to a DELETE.
func setAccess(ctx context.Context, tx pgx.Tx, t Token) error {
	if !t.OAuth() {
		if t.Access != nil {
			return errors.New("an access token is stored with an OAuth credential")
		}
		_, err := tx.Exec(ctx, `DELETE FROM herald.agent_mcp_access
			WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4`,
			t.ChainID, t.Registry, t.ID, t.Origin)
		return err
	}
	var a Access
	var key *int64
	if t.Access != nil {
		id, ok := secret.KeyID(t.Access.Ciphertext)
		if !ok {
			return errors.New("an access token is stored as a ciphertext")
		}
		a, key = *t.Access, new(int64(id))
	}
	_, err := tx.Exec(ctx, `INSERT INTO herald.agent_mcp_access (chain_id, identity_registry, agent_id, origin,
			ciphertext, key_id, expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (chain_id, identity_registry, agent_id, origin) DO UPDATE
		   SET ciphertext = excluded.ciphertext, key_id = excluded.key_id, expires_at = excluded.expires_at,
		       renew_no = 0, renewing_until = NULL`,
		t.ChainID, t.Registry, t.ID, t.Origin, a.Ciphertext, key, a.ExpiresAt)
	return err
}

// AccessAfter lists a page of the credentials that have an access token, and sets Token.Access. Pages and order are
// those of TokensAfter.
func (s *Store) AccessAfter(ctx context.Context, last *Token) (list []Token, err error) {
	defer postgres.WrapError(&err, "list access tokens")
	return s.listTokens(ctx, `SELECT `+tokenColumns+`, x.ciphertext, x.expires_at FROM herald.agent_mcp_tokens t
		JOIN herald.agent_mcp_access x USING (chain_id, identity_registry, agent_id, origin)
		WHERE x.ciphertext IS NOT NULL`, last,
		func(row pgx.CollectableRow) (t Token, err error) {
			t.Access = &Access{}
			return t, row.Scan(append(t.scanColumns(), &t.Access.Ciphertext, &t.Access.ExpiresAt)...)
		})
}

// ResealAccess replaces the ciphertext of the access token old.Access. It returns false, and changes nothing, if the
// access token was renewed or removed since old was read.
func (s *Store) ResealAccess(ctx context.Context, old Token, ciphertext []byte) (changed bool, err error) {
	defer postgres.WrapError(&err, "seal the access token of agent %s for %s anew", old.Agent, old.Origin)
	return s.replaceCiphertext(ctx, "agent_mcp_access", old, old.Access.Ciphertext, ciphertext)
}
