package oauth

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
)

// TestRevoke checks that a revoked token is unusable, and that revoking an unknown token is no error. The methods of
// client authentication are those of TestObtain.
func TestRevoke(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	s := oauthtest.New(t, oauthtest.Options{Now: func() time.Time { return epoch }, RotateRefresh: true})
	r, server := discoverServer(t, c, s)
	s.Register("us: 100%", clientSecret)
	cred := Credential{Method: MethodBasic, ClientID: "us: 100%", Secret: secret.New(clientSecret), Grant: GrantRefreshToken, Resource: r.URL,
		RefreshToken: secret.New(s.RefreshToken("us: 100%", ""))}
	token, err := c.Obtain(heraldtest.Within(t, 20*time.Second), server, cred, "")
	heraldtest.Must(t, err)
	cred.RefreshToken = token.Refresh
	for _, of := range []struct {
		token secret.Secret
		hint  string
	}{{token.Access, HintAccessToken}, {token.Refresh, HintRefreshToken}, {token.Refresh, HintRefreshToken}, {secret.New("nobody's"), "made-up"}} {
		if err := c.Revoke(heraldtest.Within(t, 20*time.Second), server, cred, of.token, of.hint); err != nil {
			t.Errorf("%s: %v", of.hint, err)
		}
		last := s.Revocations()[len(s.Revocations())-1]
		if last.Form.Get("token") != of.token.Reveal() || last.Form.Get("token_type_hint") != of.hint || last.Form.Has("resource") || last.Form.Has("grant_type") {
			t.Errorf("%v", last.Form)
		}
	}
	_, err = c.Obtain(heraldtest.Within(t, 20*time.Second), server, cred, "")
	wantFailure(t, "after the login's end", err, "refused invalid_grant", "")
}

// TestRevokeAnswers checks the answers of a revocation endpoint. Errors never contain the secrets that were sent. The
// faults of all endpoints are those of TestAnswers.
func TestRevokeAnswers(t *testing.T) {
	t.Parallel()
	const token = "r3fresh/token+1"
	echo := func(status int, code string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error":%q,"error_description":%q}`, code, r.Form.Get("token")+" of "+base64.StdEncoding.EncodeToString([]byte("us:"+clientSecret)))
		}
	}
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		fails  string // as describe says it
		says   string
	}{
		"empty":            {answerWith(200, ""), "", ""},
		"no content":       {answerWith(204, ""), "", ""},
		"babble":           {answerWith(200, `{"error":"invalid_request"}`), "", ""},
		"unsupported":      {answerWith(400, `{"error":"unsupported_token_type"}`), "refused unsupported_token_type", ""},
		"unknown client":   {echo(401, "invalid_client"), "refused invalid_client", "its words are left out"},
		"no JSON":          {answerWith(400, "oops"), "refused", "[HTTP 400]"},
		"not there":        {http.NotFound, "refused", "[HTTP 404]"},
		"redirects":        {answerWith(307, "", "Location", "$/elsewhere"), "refused", "not followed"},
		"echoes and fails": {echo(500, "x"), "unavailable 0s", "HTTP 500"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, map[string]http.HandlerFunc{"/revoke": tt.answer})
			server := Server{Issuer: s.URL, TokenEndpoint: s.URL + "/token", RevocationEndpoint: s.URL + "/revoke"}
			cred := basicCredential()
			err := newClient(t).Revoke(heraldtest.Within(t, 20*time.Second), server, cred, secret.New(token), HintRefreshToken)
			wantFailure(t, "the revocation", err, tt.fails, tt.says)
			if err == nil {
				return
			}
			if holdsSecret(err.Error(), token) || holdsSecret(err.Error(), clientSecret) {
				t.Error(err)
			}
			heraldtest.Equal(t, "it asked", s.askedPaths(), "/revoke")
		})
	}
	cred := basicCredential()
	revoke := func(endpoint string) error {
		server := Server{RevocationEndpoint: endpoint}
		return newClient(t).Revoke(heraldtest.Within(t, 20*time.Second), server, cred, secret.New(token), HintRefreshToken)
	}
	for _, endpoint := range []string{"http://login.example/revoke", "revoke"} {
		wantFailure(t, endpoint, revoke(endpoint), "metadata", "its revocation endpoint")
	}
	heraldtest.Fails(t, "no endpoint", revoke(""), ErrNoRevocation)
}

// TestRevocationEndpoint checks that the metadata names the revocation endpoint, and that an invalid one does not
// affect the rest of the document.
func TestRevocationEndpoint(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{`"https://login.example/r"`: "https://login.example/r", `7`: "", `null`: "", `"` + strings.Repeat("x", maxURL+1) + `"`: "", `"ftp://x"`: "ftp://x"} {
		o, err := parseObject([]byte(`{"issuer":"https://login.example","token_endpoint":"https://login.example/t","revocation_endpoint":` + value + `}`))
		heraldtest.Must(t, err)
		if s, err := readServer(o); err != nil || s.RevocationEndpoint != want {
			t.Errorf("%.40s: %q, %v", value, s.RevocationEndpoint, err)
		}
	}
	c := newClient(t)
	for _, o := range []oauthtest.Options{{NoRevocation: true}, {OpenID: true}} {
		s := oauthtest.New(t, o)
		if _, server := discoverServer(t, c, s); (server.RevocationEndpoint == "") != o.NoRevocation {
			t.Errorf("%+v: %q", o, server.RevocationEndpoint)
		}
	}
}
