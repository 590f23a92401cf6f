package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/secret"
	"github.com/jackc/pgx/v5"
)

// The schemes of a stored token: how it is sent (agent_mcp_tokens.scheme).
const (
	SchemeBearer = "bearer" // Authorization: Bearer <token>
	SchemeHeader = "header" // the token alone, in the named header
	SchemeFile   = "file"   // the sealed value is the path of a file with the token, which is sent as Header says

	// The sealed value is an OAuth credential. The token that is sent is an access token, which the issuer returns for
	// the credential, as Authorization: Bearer.
	SchemeClientCredentials = "oauth_client_credentials"
	SchemeAuthorizationCode = "oauth_authorization_code" // a person consented once; a refresh token renews it
)

// Token is a credential that an operator stored. By storing it, the operator agrees that it is sent to its origin and
// path, and to no other.
type Token struct {
	Agent
	Origin netguard.CredentialOrigin
	// Path is where the token is sent, with the paths below it, in the form of agentauth.CredentialPath. Empty: the
	// first registered URL sets it (PinTokenPath).
	Path   string
	Scheme string
	Header string // canonical; with Authorization, "Bearer " precedes the token
	// Issuer is the only authorization server of an OAuth credential, spelled as in its own metadata; otherwise empty.
	Issuer     string
	Ciphertext []byte
	CreatedAt  time.Time
	UpdatedAt  time.Time  // when it was stored; resealing and renewing do not change it
	ExpiresAt  *time.Time // nil: never

	// Access is an access token that was obtained with an OAuth credential. SetToken stores it, and AccessAfter reads
	// it; other functions leave it nil.
	Access *Access
}

// OAuth reports whether the token is an OAuth credential.
func (t Token) OAuth() bool {
	return t.Scheme == SchemeClientCredentials || t.Scheme == SchemeAuthorizationCode
}

// URL returns the origin and path to which the token is sent, or only the origin if the path is "/" or not yet known.
func (t Token) URL() string {
	if t.Path == "/" {
		return string(t.Origin)
	}
	return string(t.Origin) + t.Path
}

// Binding returns the values to which the ciphertext is bound: moved to another agent, origin, scheme, header or
// issuer, it cannot be decrypted. The path is not included, because a token may get its path later (PinTokenPath).
func (t Token) Binding() secret.Binding {
	return secret.Binding{Purpose: "agent_mcp_tokens.token.v1", ChainID: t.ChainID, Registry: t.Registry, AgentID: t.ID,
		Origin: string(t.Origin), Scheme: t.Scheme, Header: t.Header, Issuer: t.Issuer}
}

// AccessBinding returns the values to which the ciphertext of the access token is bound.
func (t Token) AccessBinding() secret.Binding {
	b := t.Binding()
	b.Purpose = "agent_mcp_tokens.access.v1"
	return b
}

// tokenColumns are the columns that scanToken reads.
const tokenColumns = `t.chain_id, t.identity_registry, t.agent_id::text, t.origin, t.scheme, coalesce(t.header, ''), coalesce(t.issuer, ''), t.ciphertext,
	coalesce(t.path, ''), t.created_at, t.updated_at, t.expires_at`

func (t *Token) scanColumns() []any {
	return []any{&t.ChainID, &t.Registry, &t.ID, &t.Origin, &t.Scheme, &t.Header, &t.Issuer, &t.Ciphertext, &t.Path,
		&t.CreatedAt, &t.UpdatedAt, &t.ExpiresAt}
}

func scanToken(row pgx.CollectableRow) (t Token, err error) {
	err = row.Scan(t.scanColumns()...)
	return t, err
}

// SetToken stores a token in place of the one of the same agent and origin. It raises the agent's epoch, so that every
// worker uses the token from its next claim, and releases the deliveries that were held for a missing credential, in
// order and in as many transactions as needed. It inserts a row for an unknown agent. The access token of the replaced
// credential is deleted. It returns the number of released deliveries and the tasks that the caller puts into Redis,
// even after an error: a second call continues.
func (s *Store) SetToken(ctx context.Context, t Token) (released int, tasks []Task, err error) {
	key, ok := secret.KeyID(t.Ciphertext)
	switch {
	case !ok || t.Origin == "" || t.Header == "":
		return 0, nil, errors.New("a token needs an origin, a header and a ciphertext")
	case t.Path != "" && t.Path[0] != '/':
		return 0, nil, errors.New("a token's path begins with a slash")
	case t.OAuth() != (t.Issuer != ""):
		return 0, nil, errors.New("an OAuth credential needs an issuer, and no other token has one")
	}
	defer wrapError(&err, "store a token of agent %d:%s", t.ChainID, t.ID)
	return s.changeTokens(ctx, t.Agent, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, statement("set_token"), namedStatement("set_token").args(pgx.NamedArgs{
			"chain_id": t.ChainID, "registry": t.Registry, "agent_id": t.ID, "origin": t.Origin, "scheme": t.Scheme,
			"header":     t.Header,
			"ciphertext": t.Ciphertext, "key_id": int64(key), "expires_at": t.ExpiresAt,
			"issuer": nullIfEmpty(t.Issuer), "path": nullIfEmpty(t.Path)})...); err != nil {
			return err
		}
		return setAccess(ctx, tx, t)
	})
}

// RemoveToken deletes the token of an agent for an origin, and then raises the epoch and releases deliveries as
// SetToken does. It returns ErrNotFound if no such token is stored.
func (s *Store) RemoveToken(ctx context.Context, a Agent,
	origin netguard.CredentialOrigin) (released int, tasks []Task, err error) {
	defer wrapError(&err, "remove the token of agent %d:%s for %s", a.ChainID, a.ID, origin)
	return s.changeTokens(ctx, a, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM herald.agent_mcp_tokens WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4`,
			a.ChainID, a.Registry, a.ID, origin)
		if err == nil && tag.RowsAffected() == 0 {
			err = ErrNotFound
		}
		return err
	})
}

// PinTokenPath sets the path of a token that was stored without one, and returns its path, which another worker may
// have set first. It returns ErrNotFound if the token was removed.
func (s *Store) PinTokenPath(ctx context.Context, t Token, path string) (pinned string, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "bind the token of agent %d:%s for %s to its path", t.ChainID, t.ID, t.Origin)
	err = s.pool.QueryRow(ctx, `UPDATE herald.agent_mcp_tokens SET path = coalesce(path, $5)
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 RETURNING path`,
		t.ChainID, t.Registry, t.ID, t.Origin, path).Scan(&pinned)
	return pinned, noRows(err, ErrNotFound)
}

// changeTokens makes a change to an agent's tokens, raises the agent's epoch and releases the deliveries that were held
// for a missing credential. The first batch is released in the transaction of the change.
func (s *Store) changeTokens(ctx context.Context, a Agent,
	change func(context.Context, pgx.Tx) error) (released int, tasks []Task, err error) {
	return s.releaseInBatches(ctx, a, []reason.Reason{reason.AuthRequired}, func(ctx context.Context, tx pgx.Tx) error {
		if err := change(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE herald.agents SET epoch = epoch + 1, updated_at = now(),
			state = CASE WHEN state = 'needs_auth' THEN 'pending' ELSE state END
			WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3`, a.ChainID, a.Registry, a.ID)
		return err
	})
}

// maxTokens limits the tokens of one agent that are read. An agent has one origin, or two while it moves.
const maxTokens = 64

// AgentTokens returns the sealed tokens of an agent in the order of their origins, and whether deliveries of it are
// held for a missing credential. It costs one round trip.
func (s *Store) AgentTokens(ctx context.Context, a Agent) (tokens []Token, held bool, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "look for tokens of agent %d:%s", a.ChainID, a.ID)
	b := &pgx.Batch{}
	b.Queue(`SELECT `+tokenColumns+` FROM herald.agent_mcp_tokens t
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 ORDER BY origin LIMIT $4`, a.ChainID, a.Registry, a.ID, maxTokens).
		Query(func(rows pgx.Rows) error {
			tokens, err = pgx.CollectRows(rows, scanToken)
			return err
		})
	b.Queue(`SELECT EXISTS (SELECT FROM herald.deliveries
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND place = 'held' AND reason = $4)`, a.ChainID, a.Registry, a.ID, reason.AuthRequired).
		QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
	err = s.pool.SendBatch(ctx, b).Close()
	return tokens, held, err
}

// tokenPage is the number of tokens in a page.
const tokenPage = 1000

// TokensAfter lists up to 1,000 tokens after last, in the order of chain, registry, agent and origin. The first page is
// after nil.
func (s *Store) TokensAfter(ctx context.Context, last *Token) (list []Token, err error) {
	defer wrapError(&err, "list tokens")
	return s.listTokens(ctx, `SELECT `+tokenColumns+` FROM herald.agent_mcp_tokens t WHERE true`, last, scanToken)
}

// listTokens reads a page of the tokens that a query selects, after last (nil: the first page).
func (s *Store) listTokens(ctx context.Context, selection string, last *Token,
	scan pgx.RowToFunc[Token]) ([]Token, error) {
	after := Token{Agent: Agent{ID: "-1"}}
	if last != nil {
		after = *last
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	rows, _ := s.pool.Query(ctx, selection+`
		AND (t.chain_id, t.identity_registry, t.agent_id, t.origin) > ($1::bigint, $2::text, $3::numeric, $4::text)
		ORDER BY t.chain_id, t.identity_registry, t.agent_id, t.origin LIMIT $5`,
		int64(after.ChainID), after.Registry, cmp.Or(after.ID, "0"), after.Origin, tokenPage)
	return pgx.CollectRows(rows, scan)
}

// ResealToken replaces a token's ciphertext if it has not changed since it was read. It returns false if the token was
// replaced or removed. A worker may use the old ciphertext for a while; its keyset can still decrypt it.
func (s *Store) ResealToken(ctx context.Context, old Token, ciphertext []byte) (changed bool, err error) {
	defer wrapError(&err, "seal the token of agent %d:%s for %s anew", old.ChainID, old.ID, old.Origin)
	return s.replaceCiphertext(ctx, "agent_mcp_tokens", old, old.Ciphertext, ciphertext)
}

// replaceCiphertext replaces the ciphertext of t in a table if it has not changed since it was read.
func (s *Store) replaceCiphertext(ctx context.Context, table string, t Token, old, ciphertext []byte) (bool, error) {
	key, ok := secret.KeyID(ciphertext)
	if !ok || bytes.Equal(old, ciphertext) {
		return false, errors.New("a resealed secret needs another ciphertext")
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	tag, err := s.pool.Exec(ctx, `UPDATE herald.`+table+` SET ciphertext = $5, key_id = $6
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND ciphertext = $7`,
		t.ChainID, t.Registry, t.ID, t.Origin, ciphertext, int64(key), old)
	return tag.RowsAffected() > 0, err
}

// SealingKeys counts the tokens and access tokens that each key has sealed, by the key's id.
func (s *Store) SealingKeys(ctx context.Context) (uses map[uint32]int, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count the secrets that each key sealed")
	rows, _ := s.pool.Query(ctx, `SELECT key_id, count(*) FROM (SELECT key_id FROM herald.agent_mcp_tokens
		UNION ALL SELECT key_id FROM herald.agent_mcp_access WHERE ciphertext IS NOT NULL) x WHERE key_id IS NOT NULL GROUP BY key_id`)
	uses = map[uint32]int{}
	var id int64
	var n int
	_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
		uses[uint32(id)] = n
		return nil
	})
	return uses, err
}

// Expiring contains the numbers of stored tokens, of tokens that expire soon, and of tokens that have expired.
type Expiring struct {
	Stored  int
	Soon    int // expire within the given time, and have not yet expired
	Expired int
}

// TokensExpiring counts the stored tokens by Postgres' clock. Soon are those that expire within the given time.
func (s *Store) TokensExpiring(ctx context.Context, within time.Duration) (e Expiring, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count the tokens that expire")
	err = s.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE expires_at > now() AND expires_at <= now() + $1::interval),
		count(*) FILTER (WHERE expires_at <= now()) FROM herald.agent_mcp_tokens`, within).Scan(&e.Stored, &e.Soon, &e.Expired)
	return e, err
}
