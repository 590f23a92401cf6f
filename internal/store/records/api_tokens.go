package records

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
)

// APIToken is a stored token of the HTTP API. The secret itself is not stored. The fields are in the order of
// apiTokenColumns.
type APIToken struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Scopes     []string   `json:"scopes"`
	Hash       []byte     `json:"-"` // SHA-256 of the secret, the last part of the token
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"` // nil: never
	RevokedAt  *time.Time `json:"revokedAt,omitempty"`
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty"` // updated at most once a minute; nil: never used
}

const apiTokenColumns = `id, name, scopes, hash, created_at, expires_at, revoked_at, last_used_at`

// AddAPIToken inserts a token with the ID, Name, Scopes, Hash and ExpiresAt of t. Its other fields are ignored.
func (s *Store) AddAPIToken(ctx context.Context, t APIToken) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "store API token %s", t.ID)
	defer end()
	_, err = s.db.Conns.Exec(ctx,
		`INSERT INTO herald.api_tokens (id, name, scopes, hash, expires_at) VALUES ($1, $2, $3, $4, $5)`,
		t.ID, storable.Text(t.Name, storable.MaxName), t.Scopes, t.Hash, t.ExpiresAt)
	return err
}

// APITokens lists all tokens, including revoked and expired ones, newest first.
func (s *Store) APITokens(ctx context.Context) (list []APIToken, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "list API tokens")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT `+apiTokenColumns+` FROM herald.api_tokens ORDER BY created_at DESC, id`)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[APIToken])
}

// NoteUse stores the present time as the LastUsedAt of a valid token, unless it is at most a minute old.
func (s *Store) NoteUse(ctx context.Context, id string) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "note the use of API token %s", id)
	defer end()
	_, err = s.db.Conns.Exec(ctx, `UPDATE herald.api_tokens SET last_used_at = now()
		WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
			AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')`, id)
	return err
}

// RevokeAPIToken revokes a token. It returns ErrNotFound if there is no such token, or if it is already revoked.
func (s *Store) RevokeAPIToken(ctx context.Context, id string) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "revoke API token %s", id)
	defer end()
	err = s.db.Conns.QueryRow(ctx, `UPDATE herald.api_tokens SET revoked_at = now() WHERE id = $1 AND revoked_at IS NULL
		RETURNING id`, id).Scan(&id)
	return postgres.NoRows(err, ledger.ErrNotFound)
}
