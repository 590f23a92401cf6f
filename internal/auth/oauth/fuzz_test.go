package oauth

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// FuzzParseChallenge checks that a parsed challenge is bounded and consists of the allowed characters, for any header.
func FuzzParseChallenge(f *testing.F) {
	for _, s := range []string{"", "Bearer", `Bearer realm="x", error="insufficient_scope", scope="a b", resource_metadata="https://a.example/x"`, `Basic YWJj==, Bearer scope=a`,
		`DPoP algs="ES256", resource_metadata=https://a.example/x`, `Bearer scope="a\"`, "Bearer ==,,= a=b c = \"d\" e", "Negotiate Bearer"} {
		f.Add(s, "")
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		c := ParseChallenge([]string{a, b})
		if len(c.Metadata) > maxURL || len(c.Scope) > maxScope || len(c.Error) > maxErrorCode {
			t.Errorf("too long: %+v", c)
		}
		if c.Scope != cleanScope(c.Scope) || strings.ContainsFunc(c.Error, isNoScopeRune) {
			t.Errorf("not clean: %+v", c)
		}
		if !c.Bearer && (c.Scope != "" || c.Error != "") {
			t.Errorf("of no Bearer: %+v", c)
		}
		if c.Bearer && !strings.Contains(strings.ToLower(a+b), "bearer") {
			t.Errorf("no Bearer is there: %q %q", a, b)
		}
		// A value in quotes is read as it was written, after any other challenge.
		quoted := `DPoP x="," , Bearer scope="s", resource_metadata="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(a) + `" , error="e"`
		if c := ParseChallenge([]string{quoted}); len(quoted) <= maxHeader && len(a) <= maxURL && (c.Metadata != a || c.Scope != "s" || c.Error != "e") {
			t.Errorf("%q is read as %+v", quoted, c)
		}
	})
}

// FuzzMetadata checks that an accepted metadata document describes the agent, and that secrets may be sent to its
// endpoints.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(`{"resource":"https://a.example/mcp","authorization_servers":["https://as.example"],"scopes_supported":["a"]}`), "https://a.example/mcp")
	f.Add([]byte(`{"resource":"https://a.example/a/%2e%2e","authorization_servers":["x"]}`), "https://a.example/a/%2e%2e/mcp")
	f.Add([]byte(strings.ReplaceAll(strings.Replace(full, "%s", "https://as.example", 1), "$", "https://as.example")), "http://127.0.0.1:80/")
	f.Add([]byte(`{"issuer":"x","token_endpoint":"http://[::1]:1/t","x":[[[[{}]]]],"y":1e9}`), "https://A.example:443?x")
	f.Fuzz(func(t *testing.T, raw []byte, agentURL string) {
		o, err := parseObject(raw)
		if err != nil {
			return
		}
		if s, err := readServer(o); err == nil {
			for _, e := range []string{s.TokenEndpoint, s.AuthorizationEndpoint, s.RegistrationEndpoint} {
				u, err := url.Parse(e)
				if e != "" && (err != nil || u.User != nil || u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u.Hostname()))) {
					t.Errorf("the endpoint %q", e)
				}
			}
			if s.Issuer == "" || s.TokenEndpoint == "" || len(s.Scopes) > maxNames || slices.Contains(s.Scopes, "") {
				t.Errorf("the server %+v", s)
			}
		}
		agent, err := parseURL(agentURL)
		if err != nil {
			return
		}
		r, err := readResource(o, agent)
		if err != nil {
			heraldtest.Lacks(t, "the error", err.Error(), "\n")
			return
		}
		about, err := url.Parse(r.URL)
		if err != nil || originOf(about) != originOf(agent) || len(r.Issuers) == 0 || !strings.HasPrefix(agent.EscapedPath()+"/", strings.TrimSuffix(about.EscapedPath(), "/")) {
			t.Errorf("%q is not %q", r.URL, agentURL)
		}
	})
}

// FuzzTokenAnswer checks that no response of a token endpoint yields a token that cannot be sent, or an error that
// contains a secret.
func FuzzTokenAnswer(f *testing.F) {
	const sent = "a-secret-that-was-sent"
	f.Add(200, []byte(`{"access_token":"x","token_type":"Bearer","expires_in":3600,"refresh_token":"y","scope":"a b"}`))
	f.Add(200, []byte(`{"access_token":"x\n","token_type":"bearer","expires_in":"1e308"}`))
	f.Add(400, []byte(`{"error":"invalid_grant","error_description":"no `+sent+`"}`))
	f.Add(200, []byte(`{"error":"`+sent+`"}`))
	f.Add(307, []byte(``))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		token, err := readToken(&answer{status: status, body: body}, epoch, "asked", []string{sent})
		var no *RefusedError
		switch {
		case err == nil:
			access := token.Access.Reveal()
			if access == "" || len(access) > maxSecret || strings.ContainsFunc(access, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Errorf("the token %q", access)
			}
			if !token.Expires.IsZero() && (token.Expires.Before(epoch) || token.Expires.Sub(epoch) > maxLife) {
				t.Errorf("it ends at %s", token.Expires)
			}
			if status < 200 || status > 299 {
				t.Errorf("a token with HTTP %d", status)
			}
		case !errors.As(err, &no) && !errors.Is(err, errNoToken):
			t.Errorf("an error of another kind: %v", err)
		case strings.Contains(err.Error(), sent) || strings.ContainsAny(err.Error(), "\n\r\x00") || len(err.Error()) > 2000:
			t.Errorf("the error %q", err)
		}
	})
}

// FuzzParseCredential checks that an accepted credential is usable, and is written exactly as it was read.
func FuzzParseCredential(f *testing.F) {
	for _, c := range []Credential{basicCredential(), refreshCredential(),
		{Grant: GrantClientCredentials, ClientID: "us", Method: MethodKey, Key: secret.New(pkcs8(f, ecKey256)), KeyID: "1", Algorithm: "ES256", Resource: "https://a.example/mcp", Scope: "a b"}} {
		raw, err := c.Marshal()
		heraldtest.Must(f, err)
		f.Add(raw)
	}
	f.Add([]byte(`{"grant":"refresh_token","client_id":"us","method":"none","x":1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ParseCredential(raw)
		if err != nil {
			heraldtest.Equal(t, "the client of a refused credential", c.ClientID, "")
			return
		}
		again, err := c.Marshal()
		heraldtest.Must(t, err)
		got, err := ParseCredential(again)
		if err != nil || !sameCredential(got, c) {
			t.Errorf("%s became %s: %v", raw, again, err)
		}
	})
}
