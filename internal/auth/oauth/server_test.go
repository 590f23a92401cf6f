package oauth

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// full is a document with all fields; %s is the issuer.
const full = `{"issuer":"%s","token_endpoint":"$/t","authorization_endpoint":"$/a","registration_endpoint":"https://other.example/r",
	"token_endpoint_auth_methods_supported":["client_secret_post"],"token_endpoint_auth_signing_alg_values_supported":["PS256"],
	"code_challenge_methods_supported":["plain","S256"],"scopes_supported":["a","offline_access"],"grant_types_supported":["authorization_code"],
	"authorization_response_iss_parameter_supported":true,"client_id_metadata_document_supported":true,"jwks":{"keys":[{"kty":"RSA"}]}}`

func serveMetadata(issuer string) http.HandlerFunc {
	return answerWith(200, strings.Replace(full, "%s", issuer, 1))
}

func TestServer(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	type routes = map[string]http.HandlerFunc
	for name, tt := range map[string]struct {
		path    string // path of the issuer
		routes  routes
		problem string // "": found; "issuer": *IssuerError; else the problem of the *MetadataError
		asked   string
	}{
		"at the origin":       {"", routes{serverDoc: serveMetadata("$")}, "", serverDoc},
		"ends in a /":         {"/", routes{serverDoc: serveMetadata("$/")}, "", serverDoc},
		"OpenID":              {"", routes{openIDDoc: serveMetadata("$")}, "", serverDoc + " " + openIDDoc},
		"path":                {"/t1", routes{serverDoc + "/t1": serveMetadata("$/t1")}, "", serverDoc + "/t1"},
		"path and /":          {"/t1/", routes{serverDoc + "/t1": serveMetadata("$/t1/")}, "", serverDoc + "/t1"},
		"OpenID, path after":  {"/t1", routes{openIDDoc + "/t1": serveMetadata("$/t1")}, "", serverDoc + "/t1 " + openIDDoc + "/t1"},
		"OpenID, path before": {"/t1", routes{"/t1" + openIDDoc: serveMetadata("$/t1")}, "", serverDoc + "/t1 " + openIDDoc + "/t1 /t1" + openIDDoc},
		"nowhere":             {"/t1", routes{serverDoc: serveMetadata("$/t1")}, "it is not there (HTTP 404)", serverDoc + "/t1 " + openIDDoc + "/t1 /t1" + openIDDoc},
		"another issuer":      {"", routes{serverDoc: serveMetadata("https://evil.example"), openIDDoc: serveMetadata("$")}, "issuer", serverDoc},
		"two / too many":      {"", routes{serverDoc: serveMetadata("$//")}, "issuer", serverDoc},
		"another case":        {"/t1", routes{serverDoc + "/t1": serveMetadata("$/T1")}, "issuer", serverDoc + "/t1"},
		"no issuer":           {"", routes{serverDoc: answerWith(200, `{"token_endpoint":"$/t"}`)}, "it names no issuer", serverDoc},
		"no token endpoint":   {"", routes{serverDoc: answerWith(200, `{"issuer":"$"}`)}, "it names no token endpoint", serverDoc},
		"token over http":     {"", routes{serverDoc: answerWith(200, `{"issuer":"$","token_endpoint":"http://a.example/t"}`)}, "its token_endpoint is not https", serverDoc},
		"login is a script":   {"", routes{serverDoc: answerWith(200, `{"issuer":"$","token_endpoint":"$/t","authorization_endpoint":"javascript:alert(1)"}`)}, "its authorization_endpoint is no http", serverDoc},
		"user in it":          {"", routes{serverDoc: answerWith(200, `{"issuer":"$","token_endpoint":"https://u@a.example/t"}`)}, "its token_endpoint holds a user", serverDoc},
		"fragment":            {"", routes{serverDoc: answerWith(200, `{"issuer":"$","token_endpoint":"$/t","registration_endpoint":"$/r#x"}`)}, "its registration_endpoint holds a fragment", serverDoc},
		"no text":             {"", routes{serverDoc: answerWith(200, `{"issuer":"$","token_endpoint":7}`)}, "its token_endpoint is not text", serverDoc},
		"methods no list":     {"", routes{serverDoc: answerWith(200, `{"issuer":"$","token_endpoint":"$/t","token_endpoint_auth_methods_supported":"none"}`)}, "is not a list", serverDoc},
		"too many scopes":     {"", routes{serverDoc: answerWith(200, `{"issuer":"$","token_endpoint":"$/t","scopes_supported":["a"`+strings.Repeat(`,"a"`, maxNames)+`]}`)}, "more than 256 entries", serverDoc},
		"long scope":          {"", routes{serverDoc: answerWith(200, `{"issuer":"$","token_endpoint":"$/t","scopes_supported":["`+strings.Repeat("a", maxName+1)+`"]}`)}, "more than 256 bytes", serverDoc},
		"twice":               {"", routes{serverDoc: answerWith(200, `{"issuer":"$","token_endpoint":"$/t","\u0069ssuer":"$"}`)}, "it has a name twice", serverDoc + " " + openIDDoc},
		"deep":                {"", routes{serverDoc: answerWith(200, `{"issuer":"$","x":`+nestLists(5000)+`}`)}, "nests deeper", serverDoc + " " + openIDDoc},
		"deeper":              {"", routes{serverDoc: answerWith(200, `{"issuer":"$","x":`+nestLists(50_000)+`}`)}, "nests deeper", serverDoc + " " + openIDDoc},
		"redirect":            {"", routes{serverDoc: answerWith(302, "", "Location", "$/x"), "/x": serveMetadata("$")}, "it redirects (HTTP 302)", serverDoc + " " + openIDDoc},
		"query":               {"?x", nil, "the issuer holds a query", ""},
		"fragment of it":      {"#x", nil, "the issuer holds a fragment", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, tt.routes)
			got, err := c.Server(heraldtest.Within(t, 20*time.Second), s.URL+tt.path)
			heraldtest.Equal(t, "requests", s.askedPaths(), tt.asked)
			switch {
			case tt.problem == "issuer":
				wantFailure(t, "the issuer", err, "issuer "+s.URL+tt.path+" 1", "")
			case strings.Contains(tt.problem, "not there"):
				wantFailure(t, "the issuer", err, "metadata missing", tt.problem)
			case tt.problem != "":
				wantFailure(t, "the issuer", err, "metadata", tt.problem)
			default:
				want := Server{Issuer: s.URL + tt.path, TokenEndpoint: s.URL + "/t", AuthorizationEndpoint: s.URL + "/a", RegistrationEndpoint: "https://other.example/r",
					AuthMethods: []string{"client_secret_post"}, Algorithms: []string{"PS256"}, Challenges: []string{"plain", "S256"}, Scopes: []string{"a", "offline_access"},
					Grants: []string{"authorization_code"}, IssParameter: true, ClientIDMetadata: true}
				heraldtest.Must(t, err)
				heraldtest.Equal(t, "the authorization server's document", got, want)
			}
		})
	}
	for _, issuer := range []string{"", "as.example", "http://as.example", "https://u:p@as.example", "http://[fe80::1%25lo]/"} {
		_, err := c.Server(heraldtest.Within(t, 20*time.Second), issuer)
		wantFault(t, issuer, err)
	}
}

func TestServerOf(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	s := newSite(t, map[string]http.HandlerFunc{serverDoc: serveMetadata("$"), serverDoc + "/b": serveMetadata("$/b")})
	r := Resource{URL: s.URL + "/mcp", Issuers: []string{s.URL, s.URL + "/b"}}
	if got, err := c.ServerOf(heraldtest.Within(t, 20*time.Second), r, ""); err != nil || got.Issuer != s.URL {
		t.Errorf("the first: %+v, %v", got, err)
	}
	if got, err := c.ServerOf(heraldtest.Within(t, 20*time.Second), r, s.URL+"/b"); err != nil || got.Issuer != s.URL+"/b" {
		t.Errorf("the pinned one: %+v, %v", got, err)
	}
	before := s.askedPaths()
	var i *IssuerError
	if _, err := c.ServerOf(heraldtest.Within(t, 20*time.Second), r, "https://old.example"); !errors.As(err, &i) || i.Pinned != "https://old.example" || !slices.Equal(i.Named, r.Issuers) {
		t.Errorf("another one: %v", err)
	}
	heraldtest.Equal(t, "requests", s.askedPaths(), before)
	// Only an agent without any metadata is its own authorization server.
	_, err := c.ServerOf(heraldtest.Within(t, 20*time.Second), Resource{URL: s.URL + "/mcp", Issuers: []string{s.URL + "/gone"}}, "")
	wantFailure(t, "a server without metadata", err, "metadata missing", "")
	_, err = c.ServerOf(heraldtest.Within(t, 20*time.Second), Resource{}, "")
	wantFault(t, "nobody", err)
}

// TestFinalSlash checks that one final slash makes no other issuer, neither in the agent's document nor in the server's.
// The server's spelling counts for the rest of a login.
func TestFinalSlash(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	for _, path := range []string{"", "/t1"} {
		for _, spelt := range []struct{ agent, server, pinned string }{{"/", "", "/"}, {"", "/", ""}, {"/", "", ""}, {"", "", "/"}, {"/", "/", ""}} {
			s := newSite(t, map[string]http.HandlerFunc{serverDoc + path: serveMetadata("$" + path + spelt.server)})
			r := Resource{URL: s.URL + "/mcp", Issuers: []string{s.URL + path + spelt.agent}}
			got, err := c.ServerOf(heraldtest.Within(t, 20*time.Second), r, s.URL+path+spelt.pinned)
			if err != nil || got.Issuer != s.URL+path+spelt.server {
				t.Errorf("%q %+v: %q, %v", path, spelt, got.Issuer, err)
			}
		}
	}
	heraldtest.Equal(t, "another path", SameIssuer("https://as.example/t1", "https://as.example/t2"), false)
	heraldtest.Equal(t, "a shorter path", SameIssuer("https://as.example/t1/", "https://as.example/"), false)
}

// TestLegacy checks that an agent of MCP 2025-03-26 is its own authorization server, with or without metadata.
func TestLegacy(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	for name, tt := range map[string]struct {
		routes map[string]http.HandlerFunc
		token  string
		legacy bool
		fails  bool
	}{
		"with metadata":       {map[string]http.HandlerFunc{serverDoc: serveMetadata("$")}, "/t", false, false},
		"without":             {nil, "/token", true, false},
		"with wrong metadata": {map[string]http.HandlerFunc{serverDoc: serveMetadata("https://evil.example")}, "", false, true},
		"with none just now":  {map[string]http.HandlerFunc{serverDoc: answerWith(500, "")}, "", false, true},
		"not given out":       {map[string]http.HandlerFunc{serverDoc: answerWith(403, "")}, "", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, tt.routes)
			r, err := c.Resource(heraldtest.Within(t, 20*time.Second), s.URL+"/mcp", Challenge{Bearer: true})
			if err != nil || !r.Legacy {
				t.Fatalf("got %+v, %v", r, err)
			}
			got, err := c.ServerOf(heraldtest.Within(t, 20*time.Second), r, s.URL)
			if (err != nil) != tt.fails || !tt.fails && (got.Issuer != s.URL || got.TokenEndpoint != s.URL+tt.token || got.Legacy != tt.legacy) {
				t.Errorf("got %+v, %v", got, err)
			}
			if n := len(strings.Fields(s.askedPaths())); n > 8 {
				t.Errorf("%d requests", n)
			}
		})
	}
	for _, origin := range []string{"http://a.example", "https://a.example/", "https://a.example/x", "", "https://a.example?x"} {
		_, err := LegacyServer(origin)
		heraldtest.Fails(t, origin, err)
	}
}

func TestMethod(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		methods     string
		secret, key bool
		want        string // "" means *MetadataError
	}{
		"not said, secret":    {"", true, false, MethodBasic},
		"not said, key":       {"", false, true, MethodKey},
		"not said, nothing":   {"", false, false, MethodNone},
		"both secrets":        {"client_secret_post client_secret_basic", true, false, MethodBasic},
		"post only":           {"private_key_jwt client_secret_post", true, false, MethodPost},
		"key":                 {"client_secret_basic private_key_jwt", false, true, MethodKey},
		"key where not taken": {"client_secret_basic", false, true, ""},
		"secret where not":    {"private_key_jwt none", true, false, ""},
		"public":              {"client_secret_basic", false, false, MethodNone},
	} {
		got, err := Server{Issuer: "https://as.example", AuthMethods: strings.Fields(tt.methods)}.Method(tt.secret, tt.key)
		if got != tt.want || (tt.want == "") != (describe(err) == "metadata") {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
