package oauth

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
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
	var no *RefusedError
	if _, err := c.Obtain(heraldtest.Within(t, 20*time.Second), server, cred, ""); !errors.As(err, &no) || no.Code != "invalid_grant" {
		t.Errorf("the login goes on: %v", err)
	}
}

// TestRevokeAnswers checks the answers and faults of a revocation endpoint. Errors never contain the secrets that were
// sent.
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
		answer  http.HandlerFunc
		code    string // error code of a refusal
		says    string
		passing bool
		retry   time.Duration
	}{
		"empty":            {answerWith(200, ""), "", "", false, 0},
		"no content":       {answerWith(204, ""), "", "", false, 0},
		"babble":           {answerWith(200, `{"error":"invalid_request"}`), "", "", false, 0},
		"unsupported":      {answerWith(400, `{"error":"unsupported_token_type"}`), "unsupported_token_type", "", false, 0},
		"unknown client":   {echo(401, "invalid_client"), "invalid_client", "its words are left out", false, 0},
		"no JSON":          {answerWith(400, "oops"), "", "[HTTP 400]", false, 0},
		"not there":        {http.NotFound, "", "[HTTP 404]", false, 0},
		"redirects":        {answerWith(307, "", "Location", "$/elsewhere"), "", "not followed", false, 0},
		"busy":             {answerWith(503, "", "Retry-After", "30"), "", "HTTP 503", true, 30 * time.Second},
		"endless":          {answerEndlessly, "", "longer than", true, 0},
		"breaks off":       {breakOff, "", "no usable answer", true, 0},
		"echoes and fails": {echo(500, "x"), "", "HTTP 500", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, map[string]http.HandlerFunc{"/revoke": tt.answer})
			server := Server{Issuer: s.URL, TokenEndpoint: s.URL + "/token", RevocationEndpoint: s.URL + "/revoke"}
			cred := basicCredential()
			err := newClient(t).Revoke(heraldtest.Within(t, 20*time.Second), server, cred, secret.New(token), HintRefreshToken)
			var no *RefusedError
			var away *UnavailableError
			switch {
			case tt.code == "" && tt.says == "":
				heraldtest.Must(t, err)
				return
			case tt.passing && (!errors.As(err, &away) || away.RetryAfter != tt.retry), !tt.passing && (!errors.As(err, &no) || no.Code != tt.code):
				t.Errorf("%v", err)
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) || holdsSecret(err.Error(), token) || holdsSecret(err.Error(), clientSecret) {
				t.Errorf("%v; want %q", err, tt.says)
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
		wantFault(t, endpoint, revoke(endpoint))
		heraldtest.Fails(t, endpoint, revoke(endpoint), "its revocation endpoint")
	}
	heraldtest.Fails(t, "no endpoint", revoke(""), ErrNoRevocation)
	if _, blocked := errors.AsType[*netguard.BlockedError](revoke("https://169.254.169.254/revoke")); !blocked {
		t.Error("it connects to a private address")
	}
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
