package oauth

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const (
	resourceDoc = "/.well-known/oauth-protected-resource"
	serverDoc   = "/.well-known/oauth-authorization-server"
	openIDDoc   = "/.well-known/openid-configuration"
)

func TestResource(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	doc := func(resource string) http.HandlerFunc {
		return answerWith(200, `{"resource":"`+resource+`","authorization_servers":["https://as.example"],"scopes_supported":["a","b c","a","d\""],"jwks_uri":null}`)
	}
	found := func(url string) Resource {
		return Resource{URL: url, Issuers: []string{"https://as.example"}, Scopes: []string{"a", "b", "c"}}
	}
	for name, tt := range map[string]struct {
		path      string // path of the agent; "" means /mcp
		challenge string
		routes    map[string]http.HandlerFunc
		want      Resource
		problem   string // problem of the *MetadataError
		asked     string
	}{
		"challenge":            {"", "$/x/y.json", map[string]http.HandlerFunc{"/x/y.json": doc("$/mcp")}, found("$/mcp"), "", "/x/y.json"},
		"path":                 {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("$/mcp")}, found("$/mcp"), "", resourceDoc + "/mcp"},
		"root":                 {"", "", map[string]http.HandlerFunc{resourceDoc: doc("$")}, found("$"), "", resourceDoc + "/mcp " + resourceDoc},
		"spelled with a /":     {"", "", map[string]http.HandlerFunc{resourceDoc: doc("$/")}, found("$/"), "", resourceDoc + "/mcp " + resourceDoc},
		"agent at the root":    {"/", "", map[string]http.HandlerFunc{resourceDoc: doc("$")}, found("$"), "", resourceDoc},
		"agent below":          {"/a/b/mcp", "", map[string]http.HandlerFunc{resourceDoc + "/a/b/mcp": doc("$/a/b")}, found("$/a/b"), "", resourceDoc + "/a/b/mcp"},
		"query, not sent on":   {"/mcp?key=s3cret", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("$/mcp")}, found("$/mcp"), "", resourceDoc + "/mcp"},
		"fragment":             {"/mcp#x", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("$/mcp")}, found("$/mcp"), "", resourceDoc + "/mcp"},
		"legacy":               {"/mcp?key=s3cret", "", nil, Resource{URL: "$/mcp", Issuers: []string{"$"}, Legacy: true}, "", resourceDoc + "/mcp " + resourceDoc},
		"letters":              {"/méthode/mcp", "", map[string]http.HandlerFunc{resourceDoc + "/méthode/mcp": doc("$/m%C3%A9thode")}, found("$/m%C3%A9thode"), "", resourceDoc + "/m%C3%A9thode/mcp"},
		"elsewhere":            {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("https://evil.example/mcp")}, Resource{}, "it is about https://evil.example and not about $", resourceDoc + "/mcp"},
		"another port":         {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("http://127.0.0.1:1/mcp")}, Resource{}, "it is about http://127.0.0.1:1", resourceDoc + "/mcp"},
		"https":                {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("https://127.0.0.1/mcp")}, Resource{}, "it is about https://127.0.0.1", resourceDoc + "/mcp"},
		"another path":         {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("$/other")}, Resource{}, "it is about another path of $", resourceDoc + "/mcp"},
		"half a segment":       {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("$/mc")}, Resource{}, "another path", resourceDoc + "/mcp"},
		"below the agent":      {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("$/mcp/x")}, Resource{}, "another path", resourceDoc + "/mcp"},
		"dots":                 {"/a/%2e%2E/mcp", "", map[string]http.HandlerFunc{resourceDoc: doc("$/a/%2e%2E")}, Resource{}, "another path", resourceDoc + "/a/%2e%2E/mcp " + resourceDoc},
		"another query":        {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("$/mcp?x")}, Resource{}, "another path", resourceDoc + "/mcp"},
		"fragment in it":       {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": doc("$/mcp#x")}, Resource{}, "its resource holds a fragment", resourceDoc + "/mcp"},
		"no resource":          {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(200, `{"authorization_servers":["https://as.example"]}`)}, Resource{}, "its resource is empty", resourceDoc + "/mcp"},
		"no server":            {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(200, `{"resource":"$/mcp"}`)}, Resource{}, "it names no authorization server", resourceDoc + "/mcp"},
		"server is no text":    {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(200, `{"resource":"$/mcp","authorization_servers":[1]}`)}, Resource{}, "holds something else than text", resourceDoc + "/mcp"},
		"too many servers":     {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(200, `{"resource":"$/mcp","authorization_servers":["a"`+strings.Repeat(`,"a"`, maxIssuers)+`]}`)}, Resource{}, "more than 32 entries", resourceDoc + "/mcp"},
		"twice":                {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(200, `{"resource":"$/mcp","resource":"$/mcp","authorization_servers":["https://as.example"]}`)}, Resource{}, "it has a name twice", resourceDoc + "/mcp " + resourceDoc},
		"deep":                 {"/", "", map[string]http.HandlerFunc{resourceDoc: answerWith(200, `{"x":`+nestLists(maxDepth)+`}`)}, Resource{}, "nests deeper than 16", resourceDoc},
		"no JSON":              {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(200, `<html>`)}, Resource{}, "it is not a JSON object", resourceDoc + "/mcp " + resourceDoc},
		"no object":            {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(200, `["resource"]`)}, Resource{}, "it is not a JSON object", resourceDoc + "/mcp " + resourceDoc},
		"more after it":        {"/", "", map[string]http.HandlerFunc{resourceDoc: answerWith(200, `{} {}`)}, Resource{}, "it is not a JSON object", resourceDoc},
		"redirect":             {"/", "", map[string]http.HandlerFunc{resourceDoc: answerWith(307, "", "Location", "$/elsewhere"), "/elsewhere": doc("$")}, Resource{}, "it redirects (HTTP 307)", resourceDoc},
		"forbidden":            {"/", "", map[string]http.HandlerFunc{resourceDoc: answerWith(403, "")}, Resource{}, "it is not given out (HTTP 403)", resourceDoc},
		"forbidden, then not":  {"", "", map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(401, "")}, Resource{}, "it is not given out (HTTP 401)", resourceDoc + "/mcp " + resourceDoc},
		"challenge elsewhere":  {"", "http://127.0.0.1:1/x", nil, Resource{}, "leads to another origin", ""},
		"challenge to no URL":  {"", "/x", nil, Resource{}, "the address in its challenge is no http or https URL", ""},
		"challenge with user":  {"", "http://u:p@127.0.0.1/x", nil, Resource{}, "holds a user or password", ""},
		"challenge to nothing": {"", "$/x", map[string]http.HandlerFunc{resourceDoc: doc("$")}, Resource{}, "it is not there (HTTP 404)", "/x"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, tt.routes)
			path := tt.path
			if path == "" {
				path = "/mcp"
			}
			tt.want.URL = insertOrigin(tt.want.URL, s.URL)
			if tt.want.Legacy {
				tt.want.Issuers = []string{s.URL}
			}
			got, err := c.Resource(heraldtest.Within(t, 20*time.Second), s.URL+path, Challenge{Metadata: insertOrigin(tt.challenge, s.URL)})
			heraldtest.Equal(t, "requests", s.askedPaths(), tt.asked)
			wantNoSecrets(t, err, "s3cret")
			if tt.problem != "" {
				fault, _, _ := strings.Cut(describe(err), " ") // TestDeniedMetadata checks the rest
				heraldtest.Equal(t, "the error", fault, "metadata")
				heraldtest.Fails(t, "the error", err, insertOrigin(tt.problem, s.URL))
				return
			}
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "the resource's document", got, tt.want)
		})
	}
}

// TestResourceOfNoAgent checks that no metadata is requested for an agent whose URL is invalid or ambiguous.
func TestResourceOfNoAgent(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	for _, u := range []string{"", "mcp", "ftp://a.example/mcp", "https://u:p@a.example/", "https://exämple.com/mcp", "https://ex%C3%A4mple.com/mcp", "https:///mcp", "https://a.example/\x00", "https://" + strings.Repeat("a", maxURL)} {
		_, err := c.Resource(heraldtest.Within(t, 20*time.Second), u, Challenge{})
		wantFault(t, u, err)
	}
}

// TestDeniedMetadata checks that Denied is set only if every location of the metadata requires a token or has no
// document. Any other answer is a fault of the metadata.
func TestDeniedMetadata(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	for name, tt := range map[string]struct {
		places map[string]http.HandlerFunc
		denied bool
	}{
		"everywhere":      {map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(401, ""), resourceDoc: answerWith(401, "")}, true},
		"at the path":     {map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(403, "")}, true},
		"and nonsense":    {map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(401, ""), resourceDoc: answerWith(200, "[]")}, false},
		"and a redirect":  {map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(302, ""), resourceDoc: answerWith(401, "")}, false},
		"refused instead": {map[string]http.HandlerFunc{resourceDoc + "/mcp": answerWith(400, ""), resourceDoc: answerWith(401, "")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, tt.places)
			_, err := c.Resource(heraldtest.Within(t, 20*time.Second), s.URL+"/mcp", Challenge{})
			wantFailure(t, "the metadata", err, map[bool]string{false: "metadata", true: "metadata denied"}[tt.denied], "")
		})
	}
}

// TestUnavailableMetadata checks that a temporary failure is an UnavailableError, not a fault of the document, and that
// no other location is tried.
func TestUnavailableMetadata(t *testing.T) {
	t.Parallel()
	patient, quick := newClient(t), newClient(t, shortenTimeout)
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		client  *Client
		says    string
	}{
		"500":       {answerWith(500, ""), patient, "HTTP 500"},
		"503":       {answerWith(503, "", "Retry-After", "30"), patient, "HTTP 503 (again after 30s)"},
		"429":       {answerWith(429, "", "Retry-After", "Sat, 21 Nov 2026 12:01:00 GMT"), patient, "HTTP 429 (again after 1m0s)"},
		"too large": {answerWith(200, `{"a":"`+strings.Repeat("a", maxMetadata)+`"}`), patient, "longer than 262144 bytes"},
		"endless":   {answerEndlessly, patient, "longer than 262144 bytes"},
		"silent":    {neverAnswer, quick, "did not answer within"},
		"cut off":   {breakOff, patient, "closed the connection without an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, map[string]http.HandlerFunc{resourceDoc + "/s3cret": tt.handler, serverDoc: tt.handler})
			_, err := tt.client.Resource(heraldtest.Within(t, 20*time.Second), s.URL+"/s3cret", Challenge{})
			_, err2 := tt.client.Server(heraldtest.Within(t, 20*time.Second), s.URL)
			for _, err := range []error{err, err2} {
				if !errors.As(err, new(*UnavailableError)) {
					t.Fatalf("got %v", err)
				}
				heraldtest.Fails(t, "the error", err, tt.says)
				wantNoSecrets(t, err, "s3cret")
			}
			heraldtest.Equal(t, "asked for", s.askedPaths(), resourceDoc+"/s3cret "+serverDoc)
		})
	}
	_, err := patient.Resource(heraldtest.Within(t, 20*time.Second), "http://127.0.0.1:1/s3cret", Challenge{})
	if _, ok := errors.AsType[*UnavailableError](err); !ok {
		t.Errorf("nobody there: %v", err)
	}
	wantNoSecrets(t, err, "s3cret")
}

// TestGuarded checks that the client connects to private addresses only if they are allowed, for URLs from any source.
func TestGuarded(t *testing.T) {
	t.Parallel()
	c := newGuardedClient(t, netguard.Config{})
	s := newSite(t, map[string]http.HandlerFunc{"/token": answerWith(200, `{"access_token":"x","token_type":"Bearer"}`)})
	server := Server{Issuer: s.URL, TokenEndpoint: s.URL + "/token", RegistrationEndpoint: s.URL + "/register", RevocationEndpoint: s.URL + "/revoke"}
	_, resource := c.Resource(heraldtest.Within(t, 20*time.Second), s.URL+"/mcp", Challenge{})
	_, metadata := c.Server(heraldtest.Within(t, 20*time.Second), s.URL)
	_, inward := c.Server(heraldtest.Within(t, 20*time.Second), "https://169.254.169.254")
	_, token := c.Obtain(heraldtest.Within(t, 20*time.Second), server, basicCredential(), "")
	_, client := c.Register(heraldtest.Within(t, 20*time.Second), server, "http://127.0.0.1/cb", "")
	revocation := c.Revoke(heraldtest.Within(t, 20*time.Second), server, basicCredential(), secret.New("x"), HintRefreshToken)
	for name, err := range map[string]error{"revocation": revocation, "resource": resource, "metadata": metadata, "inward": inward, "token": token, "client": client} {
		if !errors.As(err, new(*UnavailableError)) || !errors.As(err, new(*netguard.BlockedError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	heraldtest.Equal(t, "asked for", s.askedPaths(), "")
}
