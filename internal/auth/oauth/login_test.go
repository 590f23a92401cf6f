package oauth

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
)

const redirect = "http://127.0.0.1:7777/callback"

// TestLogin checks that a person can log in at servers of every kind, and that the resulting refresh token works.
func TestLogin(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]oauthtest.Options{
		"usual":            {},
		"basic":            {Methods: []string{MethodBasic}},
		"post":             {Methods: []string{MethodPost}},
		"public":           {Methods: []string{MethodNone}},
		"scopes":           {Scopes: []string{"a", "b"}},
		"offline":          {Scopes: []string{"a", "offline_access"}},
		"rotates":          {RotateRefresh: true},
		"no iss":           {NoIss: true},
		"OpenID, tenant":   {OpenID: true, IssuerPath: "/tenant"},
		"no challenge":     {NoChallenge: true},
		"root":             {NoChallenge: true, RootMetadata: true},
		"2025-03-26":       {Legacy: true},
		"2025-03-26, bare": {LegacyEndpoints: true, NoIss: true},
		"no refresh":       {NoRefresh: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Now = func() time.Time { return epoch }
			s, c := oauthtest.New(t, o), newClient(t)
			ch := challengeOf(t, s)
			r, err := c.Resource(heraldtest.Within(t, 20*time.Second), s.AgentURL, ch)
			heraldtest.Must(t, err)
			server, err := c.ServerOf(heraldtest.Within(t, 20*time.Second), r, "")
			if err != nil || server.Issuer != s.Issuer {
				t.Fatalf("got %+v, %v", server, err)
			}
			scope := r.ScopeFor(ch)
			known, err := c.Register(heraldtest.Within(t, 20*time.Second), server, redirect, scope)
			heraldtest.Must(t, err)
			known.Resource = r.URL
			login, err := c.Begin(server, known, redirect)
			heraldtest.Must(t, err)
			callback := s.Approve(login.URL())
			token, cred, err := login.Finish(heraldtest.Within(t, 20*time.Second), callback)
			if err != nil || token.Access.IsZero() || !token.Expires.Equal(epoch.Add(time.Hour)) {
				t.Fatalf("got %+v, %v", token, err)
			}
			want := scope
			if name == "offline" {
				want = "a offline_access"
			}
			if cred.Scope != want || cred.Resource != r.URL || cred.RefreshToken.IsZero() != o.NoRefresh {
				t.Errorf("the credential is %+v", cred)
			}
			_, _, err = login.Finish(heraldtest.Within(t, 20*time.Second), callback)
			heraldtest.Fails(t, "a second Finish", err)
			if o.NoRefresh {
				return
			}
			again, err := c.Obtain(heraldtest.Within(t, 20*time.Second), server, cred, "")
			if err != nil || again.Access.IsZero() || again.Refresh.IsZero() == o.RotateRefresh {
				t.Errorf("got %+v, %v", again, err)
			}
		})
	}
}

// challengeOf returns the agent's challenge to a request without a token.
func challengeOf(t *testing.T, s *oauthtest.Server) Challenge {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Post(s.AgentURL, "application/json", strings.NewReader("{}"))
	heraldtest.Must(t, err)
	defer func() { _ = resp.Body.Close() }()
	ch := ParseChallenge(resp.Header.Values("WWW-Authenticate"))
	if resp.StatusCode != http.StatusUnauthorized || !ch.Bearer {
		t.Fatalf("HTTP %d, %+v", resp.StatusCode, ch)
	}
	return ch
}

// newExchangingServer returns a server that exchanges every code.
func newExchangingServer(t *testing.T) (*site, Server) {
	t.Helper()
	s := newSite(t, map[string]http.HandlerFunc{"/token": answerWith(200, `{"access_token":"t0ken","token_type":"Bearer","refresh_token":"r3fresh"}`)})
	return s, Server{Issuer: "https://as.example", TokenEndpoint: s.URL + "/token", AuthorizationEndpoint: "https://as.example/login?tenant=1", Challenges: []string{"S256"}}
}

// TestCallback checks the callbacks that a browser may deliver, including those that an attacker crafted.
func TestCallback(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	for name, tt := range map[string]struct {
		query    string // & is replaced by the state
		promised bool   // the server announces that it sends iss
		fails    string // as describe says it
		says     string
	}{
		"usual":              {"code=c0de&state=&", false, "", ""},
		"iss":                {"code=c0de&state=&&iss=https://as.example", true, "", ""},
		"iss not promised":   {"code=c0de&state=&&iss=https://as.example", false, "", ""},
		"more":               {"code=c0de&state=&&session_state=x&scope=a", false, "", ""},
		"iss missing":        {"code=c0de&state=&", true, "issuer https://as.example 0", ""},
		"iss another":        {"code=c0de&state=&&iss=https://evil.example", true, "issuer https://as.example 1", ""},
		"iss unasked, wrong": {"code=c0de&state=&&iss=https://evil.example", false, "issuer https://as.example 1", ""},
		"iss with a /":       {"code=c0de&state=&&iss=https://as.example/", true, "issuer https://as.example 1", ""},
		"iss, case":          {"code=c0de&state=&&iss=https://AS.example", true, "issuer https://as.example 1", ""},
		"iss, port":          {"code=c0de&state=&&iss=https://as.example:443", true, "issuer https://as.example 1", ""},
		"iss twice":          {"code=c0de&state=&&iss=https://as.example&iss=https://evil.example", true, "refused", "iss more than once"},
		"iss of an error":    {"error=access_denied&state=&&iss=https://evil.example", true, "issuer https://as.example 1", ""},
		"no state":           {"code=c0de", false, "state", ""},
		"state empty":        {"code=c0de&state=", false, "state", ""},
		"state another":      {"code=c0de&state=x", false, "state", ""},
		"state twice":        {"code=c0de&state=x&state=&", false, "state", ""},
		"nothing":            {"", false, "state", ""},
		"said no":            {"error=access_denied&error_description=not%20today&state=&", false, "refused access_denied", `"not today"`},
		"no and code":        {"error=access_denied&code=c0de&state=&", false, "refused access_denied", ""},
		"empty error":        {"error=&code=c0de&state=&", false, "refused", "refuses"},
		"no code":            {"state=&", false, "refused", "brings no code"},
		"code twice":         {"code=c0de&code=c0de2&state=&", false, "refused", "code more than once"},
		"code of two lines":  {"code=c0de%0a&state=&", false, "refused", "brings no code"},
		"long":               {"code=" + strings.Repeat("c", maxParameter+1) + "&state=&", false, "refused", "the code of the callback is longer"},
		"echo":               {"error=x&error_description=your%20state%20was%20&&state=&", false, "refused x", "words are left out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, server := newExchangingServer(t)
			server.IssParameter = tt.promised
			login, err := c.Begin(server, Credential{ClientID: "us", Method: MethodNone, Resource: "https://a.example/mcp"}, redirect)
			heraldtest.Must(t, err)
			query := strings.ReplaceAll(tt.query, "state=&", "state="+login.state.Reveal())
			query = strings.ReplaceAll(query, "was%20&", "was%20"+login.state.Reveal())
			callback, err := url.ParseQuery(query)
			heraldtest.Must(t, err)
			token, cred, err := login.Finish(heraldtest.Within(t, 20*time.Second), callback)
			wantNoSecrets(t, err, login.state.Reveal(), login.verifier.Reveal(), "c0de")
			if tt.fails == "" {
				if err != nil || token.Access.Reveal() != "t0ken" || cred.RefreshToken.Reveal() != "r3fresh" {
					t.Errorf("got %+v, %+v, %v", token, cred, err)
				}
				return
			}
			wantFailure(t, "the callback", err, tt.fails, tt.says)
			if !token.Access.IsZero() || cred.ClientID != "" {
				t.Errorf("got %+v, %+v", token, cred)
			}
			heraldtest.Equal(t, "requests", s.askedPaths(), "")
			// A callback with a wrong state does not end the login. One with the right state does, with any result.
			callback = url.Values{"code": {"c0de"}, "state": {login.state.Reveal()}, "iss": {"https://as.example"}}
			if _, _, next := login.Finish(heraldtest.Within(t, 20*time.Second), callback); (next == nil) != errors.Is(err, ErrState) {
				t.Errorf("the next callback: %v", next)
			}
		})
	}
}

func TestBegin(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	_, server := newExchangingServer(t)
	usual := Credential{ClientID: "us", Method: MethodNone, Resource: "https://a.example/mcp", Scope: "a b"}
	login, err := c.Begin(server, usual, redirect)
	heraldtest.Must(t, err)
	u, err := url.Parse(login.URL())
	heraldtest.Must(t, err)
	q := u.Query()
	for name, want := range map[string]string{"tenant": "1", "response_type": "code", "client_id": "us", "redirect_uri": redirect, "resource": "https://a.example/mcp",
		"scope": "a b", "code_challenge_method": "S256", "state": login.state.Reveal()} {
		heraldtest.Equal(t, name, q.Get(name), want)
		heraldtest.Equal(t, "values of "+name, len(q[name]), 1)
	}
	challenge := sha256.Sum256([]byte(login.verifier.Reveal()))
	if q.Get("code_challenge") != base64.RawURLEncoding.EncodeToString(challenge[:]) || strings.Contains(login.URL(), login.verifier.Reveal()) || u.Host != "as.example" || u.Path != "/login" {
		t.Errorf("the URL is %s", login.URL())
	}
	heraldtest.Lacks(t, "the printed login", fmt.Sprintf("%v %+v", login.state, login.verifier),
		login.verifier.Reveal())
	other, err := c.Begin(server, usual, redirect)
	if err != nil || other.state.Compare(login.state.Reveal()) || other.verifier.Compare(login.verifier.Reveal()) {
		t.Errorf("two logins are alike: %v", err)
	}
	for name, tt := range map[string]struct {
		server func(*Server)
		config func(*Credential, *string)
		says   string
	}{
		"no PKCE":          {func(s *Server) { s.Challenges = nil }, nil, "PKCE challenges of the kind S256"},
		"plain only":       {func(s *Server) { s.Challenges = []string{"plain"} }, nil, "PKCE challenges of the kind S256"},
		"no page":          {func(s *Server) { s.AuthorizationEndpoint = "" }, nil, "no authorization endpoint"},
		"page over http":   {func(s *Server) { s.AuthorizationEndpoint = "http://as.example/login" }, nil, "is not https"},
		"no client":        {nil, func(l *Credential, _ *string) { l.ClientID = "" }, "no client id"},
		"no redirect":      {nil, func(_ *Credential, to *string) { *to = "" }, "the redirect URI is empty"},
		"redirect away":    {nil, func(_ *Credential, to *string) { *to = "http://a.example/cb" }, "the redirect URI is not https"},
		"method unknown":   {nil, func(l *Credential, _ *string) { l.Method = "tls_client_auth" }, "its method is not"},
		"resource is none": {nil, func(l *Credential, _ *string) { l.Resource = "mcp" }, "its resource"},
	} {
		s, l, to := server, usual, redirect
		if tt.server != nil {
			tt.server(&s)
		}
		if tt.config != nil {
			tt.config(&l, &to)
		}
		_, err := c.Begin(s, l, to)
		if (describe(err) == "metadata") != (tt.server != nil) {
			t.Errorf("%s: %v", name, err)
		}
		heraldtest.Fails(t, "the error", err, tt.says)
	}
}

// TestExchange checks the parameters that are sent to the token endpoint with a code.
func TestExchange(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	var form url.Values
	s := newSite(t, map[string]http.HandlerFunc{"/token": func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		form = r.PostForm
		answerWith(400, `{"error":"invalid_grant","error_description":"code c0de-of-this-login is gone"}`)(w, r)
	}})
	login, err := c.Begin(Server{Issuer: s.URL, TokenEndpoint: s.URL + "/token", AuthorizationEndpoint: s.URL + "/a", Challenges: []string{"S256"}, Scopes: []string{"offline_access"}},
		Credential{ClientID: "us", Method: MethodNone, Resource: "https://a.example/mcp"}, redirect)
	heraldtest.Must(t, err)
	_, _, err = login.Finish(heraldtest.Within(t, 20*time.Second), url.Values{"code": {"c0de-of-this-login"}, "state": {login.state.Reveal()}})
	wantFailure(t, "the exchange", err, "refused invalid_grant", "")
	wantNoSecrets(t, err, "c0de-of-this-login")
	want := url.Values{"grant_type": {"authorization_code"}, "code": {"c0de-of-this-login"}, "redirect_uri": {redirect}, "client_id": {"us"},
		"code_verifier": {login.verifier.Reveal()}, "resource": {"https://a.example/mcp"}}
	heraldtest.Equal(t, "the form", form.Encode(), want.Encode())
	if u, err := url.Parse(login.URL()); err != nil || u.Query().Get("scope") != offlineAccess {
		t.Errorf("the URL is %s", login.URL())
	}
}
