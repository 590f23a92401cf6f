package oauth

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestRegister(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	type want struct{ asked, method, secret string }
	for name, tt := range map[string]struct {
		server  Server
		handler http.HandlerFunc
		want    want
		fails   string // as describe says it
		says    string
	}{
		"public":                  {Server{AuthMethods: []string{MethodBasic, MethodNone}}, answerWith(201, `{"client_id":"id"}`), want{MethodNone, MethodNone, ""}, "", ""},
		"not said":                {Server{}, answerWith(201, `{"client_id":"id","client_secret":"s3cret"}`), want{MethodBasic, MethodBasic, "s3cret"}, "", ""},
		"post":                    {Server{AuthMethods: []string{MethodPost}}, answerWith(200, `{"client_id":"id","client_secret":"s3cret"}`), want{MethodPost, MethodPost, "s3cret"}, "", ""},
		"another than asked":      {Server{AuthMethods: []string{MethodBasic}}, answerWith(201, `{"client_id":"id","client_secret":"s3cret","token_endpoint_auth_method":"client_secret_post"}`), want{MethodBasic, MethodPost, "s3cret"}, "", ""},
		"secret of a public one":  {Server{AuthMethods: []string{MethodNone}}, answerWith(201, `{"client_id":"id","client_secret":"s3cret"}`), want{MethodNone, MethodNone, ""}, "", ""},
		"none, and a secret":      {Server{}, answerWith(201, `{"client_id":"id","client_secret":"s3cret","token_endpoint_auth_method":"none"}`), want{MethodBasic, MethodNone, ""}, "", ""},
		"a way that is not known": {Server{}, answerWith(201, `{"client_id":"id","token_endpoint_auth_method":"tls_client_auth"}`), want{asked: MethodBasic}, "unavailable 0s", "than the requested one"},
		"secret missing":          {Server{}, answerWith(201, `{"client_id":"id","token_endpoint_auth_method":"client_secret_basic"}`), want{asked: MethodBasic}, "unavailable 0s", "the client secret is empty"},
		"no id":                   {Server{}, answerWith(201, `{"client_secret":"s3cret"}`), want{asked: MethodBasic}, "unavailable 0s", "no client id"},
		"long id":                 {Server{}, answerWith(201, `{"client_id":"`+strings.Repeat("a", maxClientID+1)+`"}`), want{asked: MethodBasic}, "unavailable 0s", "its client_id is longer"},
		"no JSON":                 {Server{}, answerWith(201, `s3cret`), want{asked: MethodBasic}, "unavailable 0s", "not a JSON object"},
		"refused":                 {Server{}, answerWith(400, `{"error":"invalid_redirect_uri","error_description":"no"}`), want{asked: MethodBasic}, "refused invalid_redirect_uri", `invalid_redirect_uri ("no") [HTTP 400]`},
		"closed":                  {Server{}, answerWith(403, ``), want{asked: MethodBasic}, "refused", "HTTP 403"},
		"moved":                   {Server{}, answerWith(308, ``, "Location", "$/x"), want{asked: MethodBasic}, "refused", "redirects elsewhere"},
		"busy":                    {Server{}, answerWith(503, ``, "Retry-After", "5"), want{asked: MethodBasic}, "unavailable 5s", "again after 5s"},
		"endless":                 {Server{}, answerEndlessly, want{asked: MethodBasic}, "unavailable 0s", "longer than 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent map[string]any
			s := newSite(t, map[string]http.HandlerFunc{"/register": func(w http.ResponseWriter, r *http.Request) {
				_ = json.NewDecoder(r.Body).Decode(&sent)
				tt.handler(w, r)
			}})
			tt.server.Issuer, tt.server.RegistrationEndpoint = s.URL, s.URL+"/register"
			got, err := c.Register(heraldtest.Within(t, 20*time.Second), tt.server, redirect, "a")
			asked := map[string]any{"client_name": "Herald", "redirect_uris": []any{redirect}, "grant_types": []any{"authorization_code", "refresh_token"},
				"response_types": []any{"code"}, "token_endpoint_auth_method": tt.want.asked, "application_type": "native", "scope": "a"}
			heraldtest.Equal(t, "the registration that was sent", sent, asked)
			if tt.fails != "" {
				wantFailure(t, "the registration", err, tt.fails, tt.says)
				wantNoSecrets(t, err, "s3cret")
				return
			}
			if err != nil || got.ClientID != "id" || got.Method != tt.want.method || got.Secret.Reveal() != tt.want.secret || got.Grant != GrantRefreshToken || got.Scope != "a" {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	for name, server := range map[string]Server{
		"no endpoint": {Issuer: "https://as.example"}, "over http": {RegistrationEndpoint: "http://as.example/r"}} {
		_, err := c.Register(heraldtest.Within(t, 20*time.Second), server, redirect, "")
		wantFault(t, name, err)
	}
	_, err := c.Register(heraldtest.Within(t, 20*time.Second), Server{RegistrationEndpoint: "https://as.example/r"},
		"http://a.example/cb", "")
	heraldtest.Fails(t, "a redirect away", err, "the redirect URI")
}

// TestRegistrationGrants checks that the refresh_token grant is not requested from a server that does not support it.
func TestRegistrationGrants(t *testing.T) {
	t.Parallel()
	raw, err := describeClient(Server{Grants: []string{"authorization_code"}}, redirect, "")
	if want := `{"client_name":"Herald","redirect_uris":["` + redirect + `"],"grant_types":["authorization_code"],"response_types":["code"],"token_endpoint_auth_method":"client_secret_basic","application_type":"native"}`; err != nil || string(raw) != want {
		t.Errorf("got %s, %v", raw, err)
	}
}
