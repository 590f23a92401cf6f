package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator/tokens"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
)

// loggedIn stores the result of a login for agent 8453:42: a refresh token and the first access token.
func (d *desk) loggedIn(s *oauthtest.Server, expires time.Time) records.Token {
	d.t.Helper()
	keys := d.keys()
	s.Register("herald", "")
	cred := oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: "herald", Method: oauth.MethodNone, Resource: s.AgentURL,
		RefreshToken: secret.New(s.RefreshToken("herald", ""))}
	t := records.Token{Agent: erc8004.Agent{ChainID: 8453, Registry: strings.ToLower(registryOf(d.t, 8453).Hex()), ID: "42"}, Origin: netguard.CredentialOrigin(originOf(d.t, s.AgentURL)),
		Scheme: records.SchemeAuthorizationCode, Header: "Authorization", Issuer: s.Issuer}
	plain, err := cred.Marshal()
	heraldtest.Must(d.t, err)
	t.Ciphertext, err = keys.Seal(plain, t.Binding())
	heraldtest.Must(d.t, err)
	access := oauth.Token{Access: secret.New("access-AAAAAAAAAAAAAAAAAAAAAAAAAA"), Expires: expires}
	t.Access, err = auth.SealAccess(keys, t, access, time.Now())
	heraldtest.Must(d.t, err)
	_, _, err = records.New(d.store).SetToken(d.t.Context(), t)
	heraldtest.Must(d.t, err)
	return t
}

// TestTokenRemoveRevokes checks that the row is always removed. The output names the credentials that the authorization
// server revoked, and those that are still valid.
func TestTokenRemoveRevokes(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.env = append(d.env, "HERALD_ALLOW_NETWORKS=127.0.0.0/8")
	soon := time.Now().Add(time.Hour)
	const endIt = "To end that, end Herald's access there"
	for name, tt := range map[string]struct {
		options   oauthtest.Options
		expires   time.Time
		spoil     func(*oauthtest.Server)
		says      string // following the issuer
		revoked   string
		stillGood string
		asked     int // number of revocation requests
	}{
		"both":          {oauthtest.Options{}, soon, nil, " revoked the login's refresh token and the last access token", "refresh_token access_token", "", 2},
		"one has ended": {oauthtest.Options{}, time.Now().Add(-time.Hour), nil, " revoked the login's refresh token", "refresh_token", "", 1},
		"not offered":   {oauthtest.Options{NoRevocation: true}, soon, nil, " revoked nothing (it offers no revocation of tokens (RFC 7009)); still good there: the login's refresh token and the last access token until " + soon.UTC().Format(time.RFC3339) + ". " + endIt, "", "refresh_token access_token", 0},
		"it refuses":    {oauthtest.Options{}, soon, func(s *oauthtest.Server) { s.Unregister("herald") }, " revoked nothing (the authorization server refuses: invalid_client", "", "refresh_token access_token", 2},
	} {
		for _, json := range []bool{false, true} {
			s := oauthtest.New(t, tt.options)
			d.loggedIn(s, tt.expires)
			if tt.spoil != nil {
				tt.spoil(s)
			}
			args := []string{"token", "remove", "8453:42", "--origin", originOf(t, s.AgentURL)}
			if json {
				got := decode[tokens.Change](t, d.answers(0, "", "", "", append(args, "--json")...)).Revocation
				if got == nil || got.Issuer != s.Issuer || strings.Join(got.Revoked, " ") != tt.revoked || strings.Join(got.StillGood, " ") != tt.stillGood || (got.Problem == "") != (tt.stillGood == "") {
					t.Errorf("%s: %+v", name, got)
				}
			} else {
				d.says(0, s.Issuer+tt.says, args...)
			}
			heraldtest.Equal(t, name+": stored tokens", len(d.tokens()), 0)
			asked := s.Revocations()
			heraldtest.Equal(t, name+": revocations", len(asked), tt.asked)
			for i, r := range asked {
				if hint := r.Form.Get("token_type_hint"); hint != []string{"refresh_token", "access_token"}[i] || !strings.HasPrefix(r.Form.Get("token"), strings.TrimSuffix(hint, "_token")+"-") || r.Form.Get("client_id") != "herald" {
					t.Errorf("%s: %v", name, r.Form)
				}
			}
		}
	}
}

// TestTokenRemoveOfClients checks that a client's access token is revoked, while the client stays registered. Tokens
// that an operator supplied are not revoked.
func TestTokenRemoveOfClients(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{})
	d.protects(s)
	s.Register("herald", canary+"-secret")
	origin := originOf(t, s.AgentURL)
	d.answers(0, "is stored for", canary+"-secret", "y\n", "token", "set", "8453:42", "--client-id", "herald")
	remove := []string{"token", "remove", "8453:42", "--origin", origin}
	d.says(0, s.Issuer+" revoked the last access token; still good there: the client and its secret or key. To end", remove...)
	if r := s.Revocations(); len(r) != 1 || r[0].Form.Get("token") != s.Tokens()[0].Access || r[0].Status != http.StatusOK {
		t.Errorf("%+v", r)
	}
	d.give(0, canary, "y\n", "token", "set", "8453:42", "--origin", origin)
	if out := d.answers(0, "is removed", "", "", remove...); strings.Contains(out, "revoked") || len(s.Revocations()) != 1 {
		t.Errorf("%s", out)
	}

	// A server that does not revoke access tokens.
	other := oauthtest.New(t, oauthtest.Options{RefreshOnly: true})
	d.protects(other)
	other.Register("herald", canary+"-secret")
	d.answers(0, "is stored for", canary+"-secret", "y\n", "token", "set", "8453:42", "--client-id", "herald")
	d.answers(0, "revoked nothing (the authorization server refuses: unsupported_token_type (\"access tokens end by themselves\") [HTTP 400]); still good there: "+
		"the last access token until 20", "", "", "token", "remove", "8453:42", "--origin", originOf(t, other.AgentURL))

	// With a wrong keyset, the row is removed, but its content is unknown.
	d.loggedIn(s, time.Now().Add(time.Hour))
	d.with(heraldtest.Keyset(t))
	d.says(0, s.Issuer+" revoked nothing (the credential stored for "+origin, remove...)
	if l := d.tokens(); len(l) != 0 || len(s.Revocations()) != 1 {
		t.Errorf("%+v", l)
	}
}
