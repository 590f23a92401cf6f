package records

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
)

// The values of Token.Scheme: the contents of the ciphertext, and the way in which the token is sent.
const (
	SchemeBearer = "bearer" // Authorization: Bearer <token>
	SchemeHeader = "header" // the token alone, in the header Token.Header
	SchemeFile   = "file"   // the ciphertext is the path of a file with the token, which is sent in Token.Header

	// SchemeClientCredentials and SchemeAuthorizationCode: the ciphertext is an OAuth credential. Herald sends the
	// access token that Token.Issuer returns for the credential, as Authorization: Bearer.
	SchemeClientCredentials = "oauth_client_credentials"
	SchemeAuthorizationCode = "oauth_authorization_code" // a person consented once; a refresh token gets access tokens
)

// Token is a credential of an agent that an operator stored. By storing it, the operator agrees that Herald sends it to
// its origin and path, and to no other.
type Token struct {
	erc8004.Agent
	Origin netguard.CredentialOrigin
	// Path is a URL path in the form of auth.CredentialPath. The token may be sent to it and to paths below it.
	// Empty: the first registered URL to which it is sent sets the path (PinTokenPath).
	Path   string
	Scheme string // SchemeBearer, …
	Header string // name of the HTTP header, canonical; "Bearer " precedes the token if it is Authorization
	// Issuer is the authorization server of an OAuth credential. The spelling in that server's metadata may differ in a
	// final slash (oauth.SameIssuer). The refresh token and the client secret go to no other server. Empty for other
	// schemes.
	Issuer     string
	Ciphertext []byte
	CreatedAt  time.Time
	UpdatedAt  time.Time  // when the credential was stored; resealing and renewing do not change it
	ExpiresAt  *time.Time // nil: never

	// Access is the access token that was issued for an OAuth credential. SetToken stores it, and AccessAfter reads it;
	// other functions leave it nil.
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

// Binding returns the associated data of the ciphertext. A ciphertext that is copied to another agent, origin, scheme,
// header or issuer cannot be decrypted. The path is not included, because a token may get its path later
// (PinTokenPath).
func (t Token) Binding() secret.Binding {
	return secret.Binding{Purpose: "agent_mcp_tokens.token.v1", ChainID: t.ChainID, Registry: t.Registry, AgentID: t.ID,
		Origin: string(t.Origin), Scheme: t.Scheme, Header: t.Header, Issuer: t.Issuer}
}

// AccessBinding returns the associated data of the access token's ciphertext.
func (t Token) AccessBinding() secret.Binding {
	b := t.Binding()
	b.Purpose = "agent_mcp_tokens.access.v1"
	return b
}

// tokenColumns are the columns of a Token without Access, for a query FROM herald.agent_mcp_tokens t.
const tokenColumns = `t.chain_id, t.identity_registry, t.agent_id::text, t.origin, t.scheme, coalesce(t.header, ''),
	coalesce(t.issuer, ''), t.ciphertext,
	coalesce(t.path, ''), t.created_at, t.updated_at, t.expires_at`

func (t *Token) scanColumns() []any {
	return []any{&t.ChainID, &t.Registry, &t.ID, &t.Origin, &t.Scheme, &t.Header, &t.Issuer, &t.Ciphertext, &t.Path,
		&t.CreatedAt, &t.UpdatedAt, &t.ExpiresAt}
}

func scanToken(row pgx.CollectableRow) (t Token, err error) {
	err = row.Scan(t.scanColumns()...)
	return t, err
}

// SetToken stores a token, and replaces an earlier one of the same agent and origin. It raises the agent's epoch, so
// that every worker uses the token from its next claim. It releases the deliveries that were held for a missing
// credential (auth_required), oldest first, in as many transactions as needed. It inserts a row for an unknown agent,
// and deletes the access token of the replaced credential. It returns the number of released deliveries and the tasks
// that the caller puts into Redis or removes there. After an error, both describe the committed part, and a second call
// continues.
func (s *Store) SetToken(ctx context.Context, t Token) (released int, tasks []ledger.Task, err error) {
	key, ok := secret.KeyID(t.Ciphertext)
	switch {
	case !ok || t.Origin == "" || t.Header == "":
		return 0, nil, errors.New("a token needs an origin, a header and a ciphertext")
	case t.Path != "" && t.Path[0] != '/':
		return 0, nil, errors.New("a token's path begins with a slash")
	case t.OAuth() != (t.Issuer != ""):
		return 0, nil, errors.New("an OAuth credential needs an issuer, and no other token has one")
	}
	defer postgres.WrapError(&err, "store a token of agent %s", t.Agent)
	return s.changeTokens(ctx, t.Agent, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, statements.Text("set_token"), statements.Named("set_token").Args(pgx.NamedArgs{
			"chain_id": t.ChainID, "registry": t.Registry, "agent_id": t.ID, "origin": t.Origin, "scheme": t.Scheme,
			"header":     t.Header,
			"ciphertext": t.Ciphertext, "key_id": int64(key), "expires_at": t.ExpiresAt,
			"issuer": storable.OrNull(t.Issuer), "path": storable.OrNull(t.Path)})...); err != nil {
			return err
		}
		return setAccess(ctx, tx, t)
	})
}

// RemoveToken deletes the token of an agent for an origin. Like SetToken, it raises the epoch and releases deliveries.
// It returns ErrNotFound if no such token is stored.
func (s *Store) RemoveToken(ctx context.Context, a erc8004.Agent,
	origin netguard.CredentialOrigin) (released int, tasks []ledger.Task, err error) {
	defer postgres.WrapError(&err, "remove the token of agent %s for %s", a, origin)
	return s.changeTokens(ctx, a, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM herald.agent_mcp_tokens
			WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4`,
			a.ChainID, a.Registry, a.ID, origin)
		if err == nil && tag.RowsAffected() == 0 {
			err = ledger.ErrNotFound
		}
		return err
	})
}

// PinTokenPath sets the path of a token that has none, and returns the token's path, which another worker may have set
// first. It returns ErrNotFound if the token was removed.
func (s *Store) PinTokenPath(ctx context.Context, t Token, path string) (pinned string, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "bind the token of agent %s for %s to its path", t.Agent, t.Origin)
	defer end()
	err = s.db.Conns.QueryRow(ctx, `UPDATE herald.agent_mcp_tokens SET path = coalesce(path, $5)
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 RETURNING path`,
		t.ChainID, t.Registry, t.ID, t.Origin, path).Scan(&pinned)
	return pinned, postgres.NoRows(err, ledger.ErrNotFound)
}

// changeTokens changes an agent's tokens by calling change, raises the agent's epoch, and releases the deliveries that
// were held for a missing credential (auth_required). One transaction does this. If many deliveries were held, later
// transactions release the rest (ReleaseAfter). The results are those of SetToken.
func (s *Store) changeTokens(ctx context.Context, a erc8004.Agent,
	change func(context.Context, pgx.Tx) error) (released int, tasks []ledger.Task, err error) {
	reasons := []outcome.Reason{outcome.AuthRequired}
	return s.ledger.ReleaseAfter(ctx, a, reasons, func(ctx context.Context, tx pgx.Tx) error {
		if err := change(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE herald.agents SET epoch = epoch + 1, updated_at = now(),
			state = CASE WHEN state = 'needs_auth' THEN 'pending' ELSE state END
			WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3`, a.ChainID, a.Registry, a.ID)
		return err
	})
}

// maxTokens limits the tokens of one agent that AgentTokens reads. An agent usually has tokens for one origin, or for
// two while it moves to another one.
const maxTokens = 64

// AgentTokens returns the tokens of an agent in the order of their origins. held reports whether deliveries of the
// agent are held for a missing credential (auth_required). It costs one round trip.
func (s *Store) AgentTokens(ctx context.Context, a erc8004.Agent) (tokens []Token, held bool, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "look for tokens of agent %s", a)
	defer end()
	b := &pgx.Batch{}
	b.Queue(`SELECT `+tokenColumns+` FROM herald.agent_mcp_tokens t
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 ORDER BY origin LIMIT $4`,
		a.ChainID, a.Registry, a.ID, maxTokens).
		Query(func(rows pgx.Rows) error {
			tokens, err = pgx.CollectRows(rows, scanToken)
			return err
		})
	b.Queue(`SELECT EXISTS (SELECT FROM herald.work
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND (place || '') = 'held' AND reason = $4)`,
		a.ChainID, a.Registry, a.ID, outcome.AuthRequired).
		QueryRow(func(row pgx.Row) error { return row.Scan(&held) })
	err = s.db.Conns.SendBatch(ctx, b).Close()
	return tokens, held, err
}

// tokenPage is the number of tokens in a page of TokensAfter or AccessAfter.
const tokenPage = 1000

// TokensAfter lists the next tokenPage (1,000) tokens after last, in the order of chain, registry, agent and origin. If
// last is nil, it lists the first page.
func (s *Store) TokensAfter(ctx context.Context, last *Token) (list []Token, err error) {
	defer postgres.WrapError(&err, "list tokens")
	return s.listTokens(ctx, `SELECT `+tokenColumns+` FROM herald.agent_mcp_tokens t WHERE true`, last, scanToken)
}

// listTokens reads at most tokenPage of the agents' MCP tokens after last (nil: the first ones), in the order of chain,
// registry, agent and origin. selection is an SQL query FROM herald.agent_mcp_tokens t that ends with a WHERE
// condition; listTokens appends conditions to it. scan reads one row of the query.
func (s *Store) listTokens(ctx context.Context, selection string, last *Token,
	scan pgx.RowToFunc[Token]) ([]Token, error) {
	after := Token{Agent: erc8004.Agent{ID: "-1"}}
	if last != nil {
		after = *last
	}
	ctx, cancel := s.db.WithDeadline(ctx)
	defer cancel()
	rows, _ := s.db.Conns.Query(ctx, selection+`
		AND (t.chain_id, t.identity_registry, t.agent_id, t.origin) > ($1::bigint, $2::text, $3::numeric, $4::text)
		ORDER BY t.chain_id, t.identity_registry, t.agent_id, t.origin LIMIT $5`,
		int64(after.ChainID), after.Registry, cmp.Or(after.ID, "0"), after.Origin, tokenPage)
	return pgx.CollectRows(rows, scan)
}

// ResealToken replaces a token's ciphertext. It returns false, and changes nothing, if the token was replaced or
// removed since old was read. A worker may use the old ciphertext for a while; its keyset can still decrypt it.
func (s *Store) ResealToken(ctx context.Context, old Token, ciphertext []byte) (changed bool, err error) {
	defer postgres.WrapError(&err, "seal the token of agent %s for %s anew", old.Agent, old.Origin)
	return s.replaceCiphertext(ctx, "agent_mcp_tokens", old, old.Ciphertext, ciphertext)
}

// replaceCiphertext replaces the ciphertext of t in a table, if the stored one still equals old. Otherwise it returns
// false.
func (s *Store) replaceCiphertext(ctx context.Context, table string, t Token, old, ciphertext []byte) (bool, error) {
	key, ok := secret.KeyID(ciphertext)
	if !ok || bytes.Equal(old, ciphertext) {
		return false, errors.New("a resealed secret needs another ciphertext")
	}
	ctx, cancel := s.db.WithDeadline(ctx)
	defer cancel()
	tag, err := s.db.Conns.Exec(ctx, `UPDATE herald.`+table+` SET ciphertext = $5, key_id = $6
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND ciphertext = $7`,
		t.ChainID, t.Registry, t.ID, t.Origin, ciphertext, int64(key), old)
	return tag.RowsAffected() > 0, err
}

// SealingKeys returns how many stored tokens and access tokens each key encrypted, by the key's id.
func (s *Store) SealingKeys(ctx context.Context) (uses map[uint32]int, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "count the secrets that each key sealed")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT key_id, count(*) FROM (SELECT key_id FROM herald.agent_mcp_tokens
		UNION ALL SELECT key_id FROM herald.agent_mcp_access WHERE ciphertext IS NOT NULL) x WHERE key_id IS NOT NULL
		GROUP BY key_id`)
	return collectMap[uint32, int](rows)
}

// Expiring has the number of all stored tokens, of those that expire soon, and of those that have expired.
type Expiring struct {
	Stored  int
	Soon    int // expire within the given time, and have not yet expired
	Expired int
}

// TokensExpiring counts the stored tokens by Postgres' clock. Expiring.Soon counts those that have not yet expired, but
// will expire within the given duration.
func (s *Store) TokensExpiring(ctx context.Context, within time.Duration) (e Expiring, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "count the tokens that expire")
	defer end()
	err = s.db.Conns.QueryRow(ctx, `SELECT count(*),
		count(*) FILTER (WHERE expires_at > now() AND expires_at <= now() + $1::interval),
		count(*) FILTER (WHERE expires_at <= now()) FROM herald.agent_mcp_tokens`, within).
		Scan(&e.Stored, &e.Soon, &e.Expired)
	return e, err
}
