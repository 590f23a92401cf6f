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

// The ways in which a stored token is sent (agent_mcp_tokens.scheme).
const (
	SchemeBearer = "bearer" // Authorization: Bearer <token>
	SchemeHeader = "header" // the bare token in the named header
	SchemeFile   = "file"   // what is sealed is the path of a file that holds the token; sent as its header says

	// What is sealed is an OAuth credential; what is sent is an access token that the issuer gives for it, as
	// Authorization: Bearer.
	SchemeClientCredentials = "oauth_client_credentials"
	SchemeAuthorizationCode = "oauth_authorization_code" // a person agreed once; it is renewed with a refresh token
)

// Token is a credential that an operator stored: his consent that it is sent to that origin and path, and nowhere else.
type Token struct {
	Agent
	Origin     netguard.CredentialOrigin
	Path       string // it goes there and below, as agentauth.CredentialPath spells it; empty: the first URL that is registered decides (PinTokenPath)
	Scheme     string
	Header     string // canonical; Authorization means that Bearer stands before the token
	Issuer     string // of an OAuth credential: the only authorization server that it is for, as that one spells itself; else empty
	Ciphertext []byte
	CreatedAt  time.Time
	UpdatedAt  time.Time  // when it was stored; sealing it anew and renewing it do not change that
	ExpiresAt  *time.Time // nil: never

	// Access is the access token that is had for an OAuth credential: SetToken stores it along, AccessAfter reads it,
	// others leave it nil.
	Access *Access
}

// OAuth tells whether the token is a credential that access tokens are had for.
func (t Token) OAuth() bool {
	return t.Scheme == SchemeClientCredentials || t.Scheme == SchemeAuthorizationCode
}

// URL is where it goes, and below: the origin alone when that is all of it, or nobody knows yet.
func (t Token) URL() string {
	if t.Path == "/" {
		return string(t.Origin)
	}
	return string(t.Origin) + t.Path
}

// Binding is what its ciphertext belongs to: moved to another agent, origin, scheme, header or issuer it does not open.
// The path is none of it: it comes to a token that is stored without (PinTokenPath).
func (t Token) Binding() secret.Binding {
	return secret.Binding{Purpose: "agent_mcp_tokens.token.v1", ChainID: t.ChainID, Registry: t.Registry, AgentID: t.ID,
		Origin: string(t.Origin), Scheme: t.Scheme, Header: t.Header, Issuer: t.Issuer}
}

// AccessBinding is what the ciphertext of its access token belongs to.
func (t Token) AccessBinding() secret.Binding {
	b := t.Binding()
	b.Purpose = "agent_mcp_tokens.access.v1"
	return b
}

// tokenColumns are read by scanToken.
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

// SetToken keeps a token in the place of the one of the same agent and origin, raises the agent's epoch, so that every
// worker sees it with its next claim, and releases what is held for want of a credential: in order, in as many
// transactions as it takes. An agent that is not known yet is made known. An access token that was had for the one
// before is forgotten. It returns how many deliveries were released and the tasks that the caller puts into Redis, also
// when it fails in the middle: calling it again goes on.
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

// RemoveToken forgets the token of an agent for an origin, and does what SetToken does after that. ErrNotFound: there
// is none.
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

// PinTokenPath binds a token that was stored without a path to the one where it is about to go, and returns the path
// that it is bound to: another worker may have been first. ErrNotFound: it was removed meanwhile.
func (s *Store) PinTokenPath(ctx context.Context, t Token, path string) (pinned string, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "bind the token of agent %d:%s for %s to its path", t.ChainID, t.ID, t.Origin)
	err = s.pool.QueryRow(ctx, `UPDATE herald.agent_mcp_tokens SET path = coalesce(path, $5)
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 RETURNING path`,
		t.ChainID, t.Registry, t.ID, t.Origin, path).Scan(&pinned)
	return pinned, noRows(err, ErrNotFound)
}

// changeTokens makes one change to what is stored for an agent, in one transaction with the first batch of what that
// releases.
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

// maxTokens is how many origins of one agent are looked at. An agent has one, or two while it moves.
const maxTokens = 64

// AgentTokens are the tokens of an agent, sealed, in the order of their origins, and whether deliveries of it are held
// for want of one. It is one round trip.
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

// tokenPage is how many tokens are read at once.
const tokenPage = 1000

// TokensAfter lists tokens in the order of chain, registry, agent and origin, up to 1,000 of them. The next page starts
// after the last one; nil is before the first.
func (s *Store) TokensAfter(ctx context.Context, last *Token) (list []Token, err error) {
	defer wrapError(&err, "list tokens")
	return s.listTokens(ctx, `SELECT `+tokenColumns+` FROM herald.agent_mcp_tokens t WHERE true`, last, scanToken)
}

// listTokens reads a page of what is selected from t.
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

// ResealToken replaces a token's ciphertext, if it is still the one that was read. changed false: it was replaced or
// removed meanwhile. A worker that knows the old one goes on with it for a while; its keyset still opens that.
func (s *Store) ResealToken(ctx context.Context, old Token, ciphertext []byte) (changed bool, err error) {
	defer wrapError(&err, "seal the token of agent %d:%s for %s anew", old.ChainID, old.ID, old.Origin)
	return s.replaceCiphertext(ctx, "agent_mcp_tokens", old, old.Ciphertext, ciphertext)
}

// replaceCiphertext replaces what a table keeps for t, if it is still the one that was read.
func (s *Store) replaceCiphertext(ctx context.Context, table string, t Token, old, ciphertext []byte) (bool, error) {
	key, ok := secret.KeyID(ciphertext)
	if !ok || bytes.Equal(old, ciphertext) {
		return false, errors.New("what is sealed anew needs another ciphertext")
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	tag, err := s.pool.Exec(ctx, `UPDATE herald.`+table+` SET ciphertext = $5, key_id = $6
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND origin = $4 AND ciphertext = $7`,
		t.ChainID, t.Registry, t.ID, t.Origin, ciphertext, int64(key), old)
	return tag.RowsAffected() > 0, err
}

// SealingKeys counts the tokens that each key has sealed, by the key's id; access tokens count, too.
func (s *Store) SealingKeys(ctx context.Context) (uses map[uint32]int, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count what each key has sealed")
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

// Expiring is how many tokens there are, and how many of them will not be sent any more.
type Expiring struct {
	Stored  int
	Soon    int // expire within the time that was asked for, and have not yet
	Expired int
}

// TokensExpiring counts tokens by Postgres' clock.
func (s *Store) TokensExpiring(ctx context.Context, within time.Duration) (e Expiring, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count the tokens that expire")
	err = s.pool.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE expires_at > now() AND expires_at <= now() + $1::interval),
		count(*) FILTER (WHERE expires_at <= now()) FROM herald.agent_mcp_tokens`, within).Scan(&e.Stored, &e.Soon, &e.Expired)
	return e, err
}
