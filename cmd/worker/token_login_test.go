package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth"
	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/operator/tokens"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
	"github.com/google/uuid"
)

// browser acts as a person's browser once the address is shown.
type browser struct {
	visit func(address string)
	once  sync.Once
	gone  sync.WaitGroup
}

var shownAddress = regexp.MustCompile(`(?m)^http\S+$`)

func (b *browser) look(errs string) {
	if address := shownAddress.FindString(errs); address != "" {
		b.once.Do(func() { b.gone.Go(func() { b.visit(address) }) })
	}
}

// login runs `token login` with a browser that visits the shown address.
func (d *desk) login(code int, want, stdin string, visit func(string), args ...string) (out string) {
	d.t.Helper()
	b := &browser{visit: visit}
	d.watch = b.look
	out = d.answers(code, want, stdin, "y\n", append([]string{"token", "login", "8453:42"}, args...)...)
	d.watch = nil
	b.gone.Wait()
	return out
}

func TestTokenLogin(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{Scopes: []string{"feedback", "offline_access"}, ClientIDMetadata: true})
	d.protects(s)
	origin := originOf(t, s.AgentURL)
	held := d.ended(42, ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true, AgentError: "401"})
	clicks := func(address string) {
		heraldtest.Contains(t, "the page", s.Visit(address), "Herald has the answer")
	}

	// Herald registers itself.
	out := d.login(0, fmt.Sprintf("Its authorization server is %s, as it says, and is asked for tokens with scope feedback offline_access, for resource %s. Have", s.Issuer, origin), "", clicks)
	heraldtest.Contains(t, "the output", words(out), fmt.Sprintf("is stored for %s (the agent's own path), sent as Authorization: Bearer, "+
		"had by a login from %s; 1 held delivery was released", origin, s.Issuer))
	heraldtest.Equal(t, "d.status(held)", d.status(held), "queued")
	scheme, c := d.credential(origin)
	if scheme != records.SchemeAuthorizationCode || c.Grant != oauth.GrantRefreshToken || !strings.HasPrefix(c.ClientID, "client-") || c.RefreshToken.IsZero() || c.Resource != s.AgentURL {
		t.Errorf("%s %+v", scheme, c)
	}
	d.says(0, "the token stored for its origin was sent", "agent", "probe", "8453:42", "--send")
	heraldtest.Equal(t, "calls", len(s.Calls()), 1)

	s.Register("public", "")
	out = d.login(0, "", "", clicks, "--client-id", "public", "--json", "--scope", "feedback", "--origin", origin, "--issuer", s.Issuer)
	if c := decode[tokens.Change](t, out); c.Scheme != records.SchemeAuthorizationCode || c.ClientID != "public" || c.AuthMethod != oauth.MethodNone || c.Issuer != s.Issuer {
		t.Errorf("%s", out)
	}
	s.Register("known", canary)
	d.login(0, "had by a login", canary+"\n", clicks, "--client-id", "known", "--auth-method", "client_secret_post")
	if _, c := d.credential(origin); c.Method != oauth.MethodPost || c.Secret.Reveal() != canary || c.RefreshToken.IsZero() {
		t.Errorf("%+v", c)
	}
	d.login(0, "had by a login", "", clicks, "--client-metadata-url", "https://herald.example/client.json")
	if _, c := d.credential(origin); c.ClientID != "https://herald.example/client.json" || c.Method != oauth.MethodNone {
		t.Errorf("%+v", c)
	}
	if a := d.audits(); len(a) != 4 || a[0].Action != "token login" {
		t.Errorf("%+v", a)
	}
	d.nowhere()
}

// TestTokenLoginFinalSlash checks that an agent may add a final slash to the name of its authorization server, as the
// MCP SDK for Python does. The login and a renewal succeed, with both spellings of --issuer.
func TestTokenLoginFinalSlash(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{})
	d.protects(s)
	s.NameIssuers(s.Issuer + "/")
	clicks := func(address string) { s.Visit(address) }
	for _, args := range [][]string{nil, {"--issuer", s.Issuer}, {"--issuer", s.Issuer + "/"}, {"--issuer", s.Issuer, "--origin", originOf(t, s.AgentURL), "--resource", s.AgentURL}} {
		d.login(0, "had by a login from "+s.Issuer, "", clicks, args...)
		s.Revoke()
		d.says(0, "another one was asked for and sent", "agent", "probe", "8453:42", "--send")
	}
	heraldtest.Equal(t, "calls", len(s.Calls()), 4)
}

// TestTokenLoginRefuses checks that nothing is stored unless the right server confirmed the right login.
func TestTokenLoginRefuses(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{NoRegistration: true})
	d.protects(s)
	s.Register("public", "")
	brings := func(change func(url.Values)) func(string) {
		return func(address string) {
			values := s.Approve(address)
			change(values)
			u, err := url.Parse(address)
			if err != nil {
				t.Error(err)
				return
			}
			get(t, u.Query().Get("redirect_uri")+"?"+values.Encode())
		}
	}
	public := []string{"--client-id", "public"}
	d.login(exitFailed, "nothing was stored: ", "", brings(func(v url.Values) { v.Set("iss", "https://evil.example") }), public...)
	d.login(exitFailed, "access_denied", "", brings(func(v url.Values) { v.Del("code"); v.Set("error", "access_denied") }), public...)
	heraldtest.Equal(t, "codes were redeemed", len(s.TokenRequests()), 0)
	d.login(exitFailed, "invalid_grant", "", brings(func(v url.Values) { v.Set("code", "another") }), public...)
	d.login(exitFailed, "registers no clients by itself: have Herald made known there with the redirect URI http://127.0.0.1:", "", nil)
	d.login(exitFailed, "does not accept the address of a metadata document", "", nil, "--client-metadata-url", "https://herald.example/client.json")
	other := records.Worker{ID: uuid.New(), Host: "host-7", Keys: []uint32{7}}
	heraldtest.Must(t, records.New(d.store).ReportWorker(t.Context(), other))
	d.login(exitFailed, "nothing was stored: the worker on host-7 (", "", func(string) { t.Error("a person has to log in") }, append(public, "--wait", "1s")...)
	heraldtest.Must(t, records.New(d.store).RemoveWorker(t.Context(), other.ID))
	asked := len(s.Requests())
	for want, args := range map[string][]string{
		"--listen is not an address and port on": {"--client-id", "public", "--listen", "0.0.0.0:0"},
		"--login-page: ":                         {"--client-id", "public", "--login-page", "login.example"},
		"--resource is no absolute":              {"--resource", "mcp"},
		"both name the client":                   {"--client-id", "public", "--client-metadata-url", "https://h.example/c.json"},
		"--auth-method is for a client that is":  {"--auth-method", "client_secret_post"},
		"--wait 0s is not between":               {"--client-id", "public", "--wait", "0s"},
		"--key-id and --algorithm are for":       {"--client-id", "public", "--key-id", "k"},
	} {
		d.login(exitMisuse, want, canary, nil, args...)
	}
	if n := len(s.Requests()) - asked; n > 0 {
		t.Errorf("%d requests for command lines that cannot be meant", n)
	}
	d.login(exitMisuse, "wants a private key in PEM on stdin (-----", canary, nil, "--client-id", "public", "--auth-method", "private_key_jwt")
	d.says(exitMisuse, "there is no terminal to ask on", "token", "login", "8453:42", "--client-id", "public")
	heraldtest.Equal(t, "stored tokens", len(d.tokens()), 0)
}

// TestTokenLoginWithoutRefresh checks that a login without a refresh token stores the access token with its expiry.
func TestTokenLoginWithoutRefresh(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{NoRefresh: true})
	d.protects(s)
	clicks := func(address string) { s.Visit(address) }
	d.login(0, "warning: the authorization server gave no refresh token", "", clicks)
	if l := d.tokens(); len(l) != 1 || l[0].Scheme != records.SchemeBearer || l[0].ExpiresAt == nil || l[0].State != "soon" {
		t.Errorf("%+v", l)
	}
	s.Register("public", "")
	if a := d.audits(); len(a) != 1 || !strings.Contains(string(a[0].Filter), s.Issuer) || !strings.Contains(string(a[0].Filter), `"client-`) {
		t.Errorf("%+v", a)
	}
	if got := d.reveals("8453:42")[originOf(t, s.AgentURL)]; len(s.Tokens()) != 1 || got != "bearer Authorization "+s.Tokens()[0].Access {
		t.Errorf("%s", got)
	}
	if c := decode[tokens.Change](t, d.login(0, "", "", clicks, "--client-id", "public", "--json")); c.Issuer != s.Issuer || c.ClientID != "public" || c.Scheme != records.SchemeBearer {
		t.Errorf("%+v", c)
	}
}

// metadata makes s serve an authorization server's metadata with unexpected endpoints.
func metadata(s *oauthtest.Server, document map[string]any) {
	s.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/.well-known/oauth-authorization-server" {
			return false
		}
		_ = json.NewEncoder(w).Encode(document)
		return true
	})
}

// TestTokenLoginMixUp checks the mix-up attack of RFC 9700 §4.4. An agent's metadata names the login page of an honest
// server and a token endpoint of its own. The honest server's code is never sent to it.
func TestTokenLoginMixUp(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	honest, evil := oauthtest.New(t, oauthtest.Options{NoIss: true}), oauthtest.New(t, oauthtest.Options{NoIss: true})
	d.protects(evil)
	document := map[string]any{"issuer": evil.Issuer, "token_endpoint": evil.Issuer + "/token", "authorization_endpoint": honest.Issuer + "/authorize",
		"registration_endpoint": evil.Issuer + "/register", "code_challenge_methods_supported": []string{"S256"}}
	metadata(evil, document)
	told := []string{"--origin", originOf(t, evil.AgentURL), "--issuer", evil.Issuer}
	says := fmt.Sprintf("the authorization server %s has people log in at %s and has what comes of it sent to %[1]s/token, and nothing shows that these belong together", evil.Issuer, honest.Issuer)
	never := func(address string) { t.Errorf("somebody is to log in at %s", address) }
	for _, args := range [][]string{nil, told, append([]string{"--client-id", "public"}, told...)} {
		d.login(exitMisuse, says, "", never, args...)
	}
	d.login(exitMisuse, fmt.Sprintf("--login-page is %s, and the authorization server %[1]s has people log in at %s", evil.Issuer, honest.Issuer), "", never, append([]string{"--login-page", evil.Issuer}, told...)...)
	// A login page of the issuer with a token endpoint elsewhere is refused too.
	document["issuer"], document["authorization_endpoint"], document["token_endpoint"] = evil.Issuer, evil.Issuer+"/authorize", honest.Issuer+"/token"
	d.login(exitMisuse, "nothing shows that these belong together", "", never, told...)
	heraldtest.Equal(t, "requests to the honest server", len(honest.Requests()), 0)
	heraldtest.Equal(t, "token requests to the other", len(evil.TokenRequests()), 0)

	// With --login-page, the person may log in there. The output names the page.
	document["authorization_endpoint"], document["token_endpoint"] = honest.Issuer+"/authorize", evil.Issuer+"/token"
	comes := func(values url.Values) func(string) {
		return func(address string) {
			u, err := url.Parse(address)
			if err != nil || originOf(t, address) != honest.Issuer {
				t.Errorf("%s: %v", address, err)
				return
			}
			values.Set("state", u.Query().Get("state"))
			get(t, u.Query().Get("redirect_uri")+"?"+values.Encode())
		}
	}
	d.login(exitFailed, "People log in at another place, "+honest.Issuer+". Have that", "", comes(url.Values{"error": {"access_denied"}}), "--login-page", honest.Issuer+"/authorize", "--client-id", "public")
	// If the server announced that it sends iss, a callback of a different server is ignored.
	document["authorization_response_iss_parameter_supported"] = true
	for _, values := range []url.Values{{"code": {"honest"}}, {"code": {"honest"}, "iss": {honest.Issuer}}} {
		d.login(exitFailed, "log in at another place, "+honest.Issuer, "", comes(values), append([]string{"--client-id", "public"}, told...)...)
	}
	if l := d.tokens(); len(evil.TokenRequests()) != 0 || len(l) != 0 {
		t.Errorf("%+v %+v", evil.TokenRequests(), l)
	}
}

// TestTokenLoginFindsFaultsFirst checks that faults that would make a login useless are reported before the person logs
// in.
func TestTokenLoginFindsFaultsFirst(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{Methods: []string{oauthtest.MethodBasic}})
	d.protects(s)
	s.Register("known", canary)
	never := func(address string) { t.Errorf("somebody is to log in at %s", address) }
	d.login(exitMisuse, "say --auth-method, which there is one of client_secret_basic; or --auth-method none", canary, never, "--client-id", "known")
	clicks := func(address string) { s.Visit(address) }
	d.login(0, "had by a login from "+s.Issuer, canary, clicks, "--client-id", "known", "--auth-method", "client_secret_basic")
	d.says(0, s.Issuer+" revoked the login's refresh token and the last access token", "token", "remove", "8453:42", "--origin", originOf(t, s.AgentURL))

	b := &browser{visit: never}
	d.watch = b.look
	for database, c := range map[string]struct{ timeout, says string }{
		heraldtest.EmptyPostgres(t): {"1m", "run `worker migrate`"}, nowhere: {"300ms", "Postgres did not answer within 300ms"}} {
		d.env = append(d.env, "DATABASE_URL="+database)
		_, errs := d.give(exitFailed, "", "y\n",
			"token", "login", "8453:42", "--client-id", "known", "--auth-method", "none", "--timeout="+c.timeout)
		heraldtest.Contains(t, "the error", errs, c.says)
		heraldtest.Lacks(t, "the error", errs, "[y/N]", "Open this address", s.Issuer)
	}
}

// get requests an address as a browser does.
func get(t testing.TB, address string) {
	t.Helper()
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get(address)
	if err != nil {
		t.Error(err)
		return
	}
	_ = res.Body.Close()
}

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
