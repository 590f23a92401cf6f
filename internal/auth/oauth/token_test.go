package oauth

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
)

const clientSecret = "s3cret/with=signs&more" // raw, form-encoded and base64 spellings all differ

func basicCredential() Credential {
	return Credential{Grant: GrantClientCredentials, ClientID: "us", Method: MethodBasic, Secret: secret.New(clientSecret)}
}

func refreshCredential() Credential {
	return Credential{Grant: GrantRefreshToken, ClientID: "us", Method: MethodNone, RefreshToken: secret.New("r3fresh/token+1")}
}

// discoverServer obtains the metadata that a client needs from an oauthtest server.
func discoverServer(t *testing.T, c *Client, s *oauthtest.Server) (Resource, Server) {
	t.Helper()
	r, err := c.Resource(heraldtest.Within(t, 20*time.Second), s.AgentURL, Challenge{})
	heraldtest.Must(t, err)
	server, err := c.ServerOf(heraldtest.Within(t, 20*time.Second), r, "")
	heraldtest.Must(t, err)
	return r, server
}

// TestObtain checks every method of client authentication against a server that verifies it.
func TestObtain(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	s := oauthtest.New(t, oauthtest.Options{Now: func() time.Time { return epoch }, Scopes: []string{"a", "b"}, Lifetime: 90 * time.Second, RotateRefresh: true})
	r, server := discoverServer(t, c, s)
	s.Register("us: 100%", clientSecret)
	s.Register("public", "")
	for name, tt := range map[string]struct {
		cred  Credential
		scope string
		want  string // expected scope
	}{
		"basic":              {Credential{Grant: GrantClientCredentials, Method: MethodBasic, ClientID: "us: 100%", Secret: secret.New(clientSecret)}, "", ""},
		"post":               {Credential{Grant: GrantClientCredentials, Method: MethodPost, ClientID: "us: 100%", Secret: secret.New(clientSecret)}, "", ""},
		"its scope":          {Credential{Grant: GrantClientCredentials, Method: MethodPost, ClientID: "us: 100%", Secret: secret.New(clientSecret), Scope: "a"}, "", "a"},
		"another scope":      {Credential{Grant: GrantClientCredentials, Method: MethodPost, ClientID: "us: 100%", Secret: secret.New(clientSecret), Scope: "a"}, "a b", "a b"},
		"refresh":            {Credential{Grant: GrantRefreshToken, Method: MethodNone, ClientID: "public", RefreshToken: secret.New(s.RefreshToken("public", "a b")), Scope: "a b offline_access"}, "", "a b"},
		"refresh, basic":     {Credential{Grant: GrantRefreshToken, Method: MethodBasic, ClientID: "us: 100%", Secret: secret.New(clientSecret), RefreshToken: secret.New(s.RefreshToken("us: 100%", "a"))}, "", "a"},
		"refresh, less":      {Credential{Grant: GrantRefreshToken, Method: MethodNone, ClientID: "public", RefreshToken: secret.New(s.RefreshToken("public", "a b"))}, "b", "b"},
		"another's resource": {Credential{Grant: GrantClientCredentials, Method: MethodPost, ClientID: "us: 100%", Secret: secret.New(clientSecret), Resource: "https://other.example"}, "", "invalid_target"},
		"wrong secret":       {Credential{Grant: GrantClientCredentials, Method: MethodPost, ClientID: "us: 100%", Secret: secret.New("wrong")}, "", "invalid_client"},
		"unknown":            {Credential{Grant: GrantClientCredentials, Method: MethodBasic, ClientID: "them", Secret: secret.New("wrong")}, "", "invalid_client"},
		"scope too much":     {Credential{Grant: GrantClientCredentials, Method: MethodBasic, ClientID: "us: 100%", Secret: secret.New(clientSecret)}, "c", "invalid_scope"},
		"refresh too much":   {Credential{Grant: GrantRefreshToken, Method: MethodNone, ClientID: "public", RefreshToken: secret.New(s.RefreshToken("public", "a"))}, "b", "invalid_scope"},
		"revoked":            {Credential{Grant: GrantRefreshToken, Method: MethodNone, ClientID: "public", RefreshToken: secret.New("gone")}, "", "invalid_grant"},
		"never had one":      {Credential{Grant: GrantRefreshToken, Method: MethodNone, ClientID: "public"}, "", "invalid_grant"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.cred.Resource == "" {
				tt.cred.Resource = r.URL
			}
			got, err := c.Obtain(heraldtest.Within(t, 20*time.Second), server, tt.cred, tt.scope)
			if strings.HasPrefix(tt.want, "invalid_") {
				wantFailure(t, "the request", err, "refused "+tt.want, "")
				wantNoSecrets(t, err, clientSecret)
				return
			}
			if err != nil || got.Access.IsZero() || got.Scope != tt.want || !got.Expires.Equal(epoch.Add(90*time.Second)) {
				t.Fatalf("got %+v, %v", got, err)
			}
			heraldtest.Equal(t, "a refresh token", !got.Refresh.IsZero(), tt.cred.Grant == GrantRefreshToken)
			heraldtest.Lacks(t, "the printed token", fmt.Sprintf("%+v %#v %v", got, got, tt.cred), got.Access.Reveal())
		})
	}
}

// TestRequest checks that a token request contains exactly the required parameters and headers.
func TestRequest(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	var form url.Values
	var header http.Header
	s := newSite(t, map[string]http.HandlerFunc{"/token": func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		form, header = r.PostForm, r.Header
		answerWith(200, `{"access_token":"x","token_type":"bearer"}`)(w, r)
	}})
	server := Server{Issuer: s.URL, TokenEndpoint: s.URL + "/token?tenant=1"}
	got, err := c.Obtain(heraldtest.Within(t, 20*time.Second), server, basicCredential(), "")
	if err != nil || !got.Expires.IsZero() || got.Scope != "" || !got.Refresh.IsZero() {
		t.Errorf("got %+v, %v", got, err)
	}
	heraldtest.Equal(t, "the form", form.Encode(), (url.Values{"grant_type": {"client_credentials"}}).Encode())
	heraldtest.Equal(t, "the header", header.Get("Authorization"),
		"Basic "+base64.StdEncoding.EncodeToString([]byte("us:"+url.QueryEscape(clientSecret))))
	if header.Get("Accept") != "application/json" || header.Get("Content-Type") != "application/x-www-form-urlencoded" || header.Get("Cookie") != "" {
		t.Errorf("the headers are %v", header)
	}
	refresh := refreshCredential()
	refresh.Scope, refresh.Resource = "a b", "https://a.example/mcp"
	if got, err = c.Obtain(heraldtest.Within(t, 20*time.Second), server, refresh, ""); err != nil || got.Scope != "a b" {
		t.Errorf("got %+v, %v", got, err)
	}
	heraldtest.Equal(t, "the form", form, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {"r3fresh/token+1"},
		"client_id": {"us"}, "resource": {refresh.Resource}})
	heraldtest.Equal(t, "asked for", s.askedPaths(), "/token?tenant=1 /token?tenant=1")
	for _, bad := range []Server{{}, {Issuer: "https://as.example"}, {TokenEndpoint: "http://as.example/token"}} {
		_, err := c.Obtain(heraldtest.Within(t, 20*time.Second), bad, basicCredential(), "")
		wantFault(t, fmt.Sprintf("%+v", bad), err)
	}
	cred := basicCredential()
	cred.ClientID = ""
	_, err = c.Obtain(heraldtest.Within(t, 20*time.Second), server, cred, "")
	heraldtest.Fails(t, "without a client id", err)
}

// TestAnswers checks valid and invalid answers of a token endpoint.
func TestAnswers(t *testing.T) {
	t.Parallel()
	patient, quick := newClient(t), newClient(t, shortenTimeout)
	const ok = `"access_token":"t0ken","token_type":"Bearer"`
	type want struct {
		fails, says string // as describe says it, and words of the error; "" means a token
		expires     time.Duration
		scope       string
	}
	later := func(words string) want { return want{fails: "unavailable 0s", says: words} }
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		want    want
	}{
		"plain":                {answerWith(200, `{`+ok+`}`), want{scope: "asked"}},
		"a refresh token":      {answerWith(200, `{`+ok+`,"refresh_token":"y"}`), want{scope: "asked"}}, // is ignored
		"case":                 {answerWith(201, `{"access_token":"t0ken","token_type":"BEARER","scope":"a  b"}`), want{scope: "a b"}},
		"lifetime":             {answerWith(200, `{`+ok+`,"expires_in":3600}`), want{expires: time.Hour, scope: "asked"}},
		"lifetime as text":     {answerWith(200, `{`+ok+`,"expires_in":"60"}`), want{expires: time.Minute, scope: "asked"}},
		"fraction":             {answerWith(200, `{`+ok+`,"expires_in":1.5e0}`), want{expires: 1500 * time.Millisecond, scope: "asked"}},
		"lifetime 0":           {answerWith(200, `{`+ok+`,"expires_in":0}`), want{scope: "asked"}},
		"lifetime below 0":     {answerWith(200, `{`+ok+`,"expires_in":-1}`), want{scope: "asked"}},
		"lifetime without end": {answerWith(200, `{`+ok+`,"expires_in":1e300}`), want{expires: maxLife, scope: "asked"}},
		"lifetime too large":   {answerWith(200, `{`+ok+`,"expires_in":1e999}`), want{scope: "asked"}},
		"lifetime NaN":         {answerWith(200, `{`+ok+`,"expires_in":"NaN"}`), want{scope: "asked"}},
		"lifetime a list":      {answerWith(200, `{`+ok+`,"expires_in":[1]}`), want{scope: "asked"}},
		"null":                 {answerWith(200, `{`+ok+`,"expires_in":null,"scope":null,"refresh_token":null}`), want{scope: "asked"}},

		"DPoP":                {answerWith(200, `{"access_token":"t0ken","token_type":"DPoP"}`), want{fails: "refused unsupported_token_type", says: "tokens are of type DPoP"}},
		"no type":             {answerWith(200, `{"access_token":"t0ken"}`), want{fails: "refused unsupported_token_type", says: "Bearer only"}},
		"token as type":       {answerWith(200, `{"access_token":"t0ken12345","token_type":"t0ken12345"}`), want{fails: "refused unsupported_token_type", says: "words are left out"}},
		"invalid_client":      {answerWith(401, `{"error":"invalid_client","error_description":"who\nare you"}`), want{fails: "refused invalid_client", says: `invalid_client ("who are you") [HTTP 401]`}},
		"invalid_grant":       {answerWith(400, `{"error":"invalid_grant"}`), want{fails: "refused invalid_grant", says: "invalid_grant [HTTP 400]"}},
		"no with a 200":       {answerWith(200, `{"error":"access_denied"}`), want{fails: "refused access_denied", says: "access_denied [HTTP 200]"}},
		"page":                {answerWith(403, `<html>`), want{fails: "refused", says: "refuses [HTTP 403]"}},
		"nothing":             {answerWith(404, ``), want{fails: "refused", says: "refuses [HTTP 404]"}},
		"endpoint moved":      {answerWith(307, ``, "Location", "http://127.0.0.1:1/"), want{fails: "refused", says: "it redirects elsewhere, which is not followed"}},
		"endpoint moved, 302": {answerWith(302, ``, "Location", "$/token"), want{fails: "refused", says: "it redirects elsewhere"}},
		"strange code":        {answerWith(400, `{"error":"a b\u202e"}`), want{fails: "refused", says: "refuses [HTTP 400]"}},
		"long description":    {answerWith(400, `{"error":"x","error_description":"`+strings.Repeat("é", 1000)+`"}`), want{fails: "refused x", says: " …"}},
		"echo":                {answerWith(400, `{"error":"x","error_description":"no: `+clientSecret+`"}`), want{fails: "refused x", says: "words are left out"}},
		"echo, form":          {answerWith(400, `{"error":"x","error_description":"no: `+url.QueryEscape(clientSecret)+`"}`), want{fails: "refused x", says: "words are left out"}},
		"echo, base64":        {answerWith(400, `{"error":"x","error_description":"no: `+base64.StdEncoding.EncodeToString([]byte("us:"+url.QueryEscape(clientSecret)))+`"}`), want{fails: "refused x", says: "words are left out"}},
		"echo, a part":        {answerWith(400, `{"error":"x","error_description":"no: `+clientSecret[:14]+`…"}`), want{fails: "refused x", says: "words are left out"}},
		"echo as code":        {answerWith(400, `{"error":"`+clientSecret+`"}`), want{fails: "refused", says: "refuses [HTTP 400]"}},

		"500":               {answerWith(500, `{"error":"server_error"}`), later("HTTP 500")},
		"503":               {answerWith(503, ``, "Retry-After", "120"), want{fails: "unavailable 2m0s", says: "HTTP 503"}},
		"429":               {answerWith(429, ``, "Retry-After", "86400"), want{fails: "unavailable 1h0m0s", says: "HTTP 429"}},
		"429, date gone":    {answerWith(429, ``, "Retry-After", "Sat, 21 Nov 2020 12:01:00 GMT"), later("HTTP 429")},
		"429, junk":         {answerWith(429, ``, "Retry-After", "soon"), later("HTTP 429")},
		"408":               {answerWith(408, ``), later("HTTP 408")},
		"too large":         {answerWith(200, `{`+ok+`,"x":"`+strings.Repeat("a", maxAnswer)+`"}`), later("longer than 65536 bytes")},
		"refusal too large": {answerWith(400, strings.Repeat("a", maxAnswer+1)), later("longer than 65536 bytes")},
		"endless":           {answerEndlessly, later("longer than 65536 bytes")},
		"cut off":           {breakOff, later("closed the connection without an answer")},
		"silent":            {neverAnswer, later("did not answer within")},
		"junk": {func(w http.ResponseWriter, _ *http.Request) {
			hijackConnection(w, "HTTP/1.1 "+clientSecret+" OK\r\n\r\n")
		}, later("is not valid HTTP")},
		"no JSON":           {answerWith(200, `t0ken`), later("it is not a JSON object")},
		"empty":             {answerWith(204, ``), later("it is not a JSON object")},
		"twice":             {answerWith(200, `{`+ok+`,"access_token":"t0ken2"}`), later("it has a name twice")},
		"deep":              {answerWith(200, `{`+ok+`,"x":`+nestLists(100)+`}`), later("nests deeper")},
		"token a number":    {answerWith(200, `{"access_token":1,"token_type":"Bearer"}`), later("its access_token is not text")},
		"token empty":       {answerWith(200, `{"access_token":"","token_type":"Bearer"}`), later("is empty or contains characters that cannot be sent")},
		"token two lines":   {answerWith(200, `{"access_token":"t0ken\r\nX: y","token_type":"Bearer"}`), later("contains characters that cannot be sent")},
		"token too long":    {answerWith(200, `{"access_token":"`+strings.Repeat("a", maxSecret+1)+`","token_type":"Bearer"}`), later("longer than 16384 bytes")},
		"type a list":       {answerWith(200, `{"access_token":"t0ken","token_type":["Bearer"]}`), later("its token_type is not text")},
		"refresh two lines": {answerWith(200, `{`+ok+`,"refresh_token":"a\nb"}`), later("its refresh_token contains")},
		"scope a list":      {answerWith(200, `{`+ok+`,"scope":["a"]}`), later("its scope is not text")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, map[string]http.HandlerFunc{"/token": tt.handler})
			c := patient
			if name == "silent" {
				c = quick
			}
			got, err := c.Obtain(heraldtest.Within(t, 20*time.Second), Server{Issuer: s.URL, TokenEndpoint: s.URL + "/token"}, basicCredential(), "asked")
			heraldtest.Equal(t, "asked for", s.askedPaths(), "/token")
			wantNoSecrets(t, err, clientSecret, url.QueryEscape(clientSecret), "t0ken", clientSecret[:14])
			if tt.want.fails != "" {
				wantFailure(t, "the answer", err, tt.want.fails, tt.want.says)
				return
			}
			expires := time.Time{}
			if tt.want.expires > 0 {
				expires = epoch.Add(tt.want.expires)
			}
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "the token", got, Token{Access: secret.New("t0ken"), Expires: expires, Scope: tt.want.scope})
		})
	}
}

func hijackConnection(w http.ResponseWriter, text string) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	_, _ = conn.Write([]byte(text))
	_ = conn.Close()
}

// TestCancelled checks that errors.Is recognizes the end of the caller's own context.
func TestCancelled(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string]http.HandlerFunc{"/token": neverAnswer})
	ctx, cancel := context.WithCancel(heraldtest.Within(t, 20*time.Second))
	cancel()
	_, err := newClient(t).Obtain(ctx, Server{Issuer: s.URL, TokenEndpoint: s.URL + "/token"}, basicCredential(), "")
	heraldtest.Fails(t, "Obtain", err, context.Canceled)
}

// TestAssertion checks assertions signed with every kind of key, with an independent implementation.
func TestAssertion(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	s := oauthtest.New(t, oauthtest.Options{Now: func() time.Time { return epoch }, Methods: []string{MethodKey}, IssuerPath: "/tenant"})
	r, server := discoverServer(t, c, s)
	for name, tt := range map[string]struct {
		key       crypto.Signer
		pem       string
		algorithm string
		want      string
	}{
		"ES256":        {ecKey256, pkcs8(t, ecKey256), "", "ES256"},
		"ES256, SEC 1": {ecKey256, sec1(t, ecKey256), "ES256", "ES256"},
		"ES384":        {ecKey384, pkcs8(t, ecKey384), "", "ES384"},
		"ES512":        {ecKey521, pkcs8(t, ecKey521), "", "ES512"},
		"EdDSA":        {edKey, pkcs8(t, edKey), "", "EdDSA"},
		"RS256":        {rsaKey(t), pkcs8(t, rsaKey(t)), "", "RS256"},
		"RS512":        {rsaKey(t), pkcs1(rsaKey(t)), "RS512", "RS512"},
		"PS256":        {rsaKey(t), pkcs8(t, rsaKey(t)), "PS256", "PS256"},
		"PS384":        {rsaKey(t), "some words\n" + pkcs1(rsaKey(t)), "PS384", "PS384"},
	} {
		s.RegisterKey(name, tt.key.Public())
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cred := Credential{Grant: GrantClientCredentials, Method: MethodKey, ClientID: name, Key: secret.New(tt.pem), Algorithm: tt.algorithm, KeyID: "k1", Resource: r.URL}
			for range 2 { // each assertion is sent once
				_, err := c.Obtain(heraldtest.Within(t, 20*time.Second), server, cred, "")
				heraldtest.Must(t, err)
			}
			ids := map[any]bool{}
			for _, req := range s.TokenRequests() {
				if req.Form.Get("client_id") != name {
					continue
				}
				header, claims := decodeAssertion(t, req.Form.Get("client_assertion"))
				heraldtest.Equal(t, "the header", header, map[string]any{"alg": tt.want, "kid": "k1", "typ": "JWT"})
				ids[claims["jti"]] = claims["jti"] != ""
				delete(claims, "jti")
				at := float64(epoch.Unix())
				heraldtest.Equal(t, "the claims", claims, map[string]any{"iss": name, "sub": name, "aud": s.Issuer, "iat": at, "exp": at + assertionLife.Seconds()})
			}
			heraldtest.Equal(t, "the ids of two assertions", slices.Collect(maps.Values(ids)), []bool{true, true})
		})
	}
	s.RegisterKey("another key", ecKey256.Public())
	_, err := c.Obtain(heraldtest.Within(t, 20*time.Second), server, Credential{Grant: GrantClientCredentials, Method: MethodKey, ClientID: "another key",
		Key: secret.New(pkcs8(t, newEC(elliptic.P256()))), Resource: r.URL}, "")
	wantFailure(t, "another key", err, "refused invalid_client", "")
}

// decodeAssertion returns the header and the claims of a JWT.
func decodeAssertion(t testing.TB, assertion string) (header, claims map[string]any) {
	t.Helper()
	for i, part := range strings.Split(assertion, ".")[:2] {
		raw, err := base64.RawURLEncoding.DecodeString(part)
		heraldtest.Must(t, err)
		heraldtest.Must(t, json.Unmarshal(raw, []*map[string]any{&header, &claims}[i]))
	}
	return header, claims
}

// TestAlgorithm checks that the signer uses the first of the key's algorithms that the server accepts.
func TestAlgorithm(t *testing.T) {
	t.Parallel()
	key := secret.New(pkcs8(t, rsaKey(t)))
	for name, tt := range map[string]struct{ named, taken, want string }{
		"not said":      {"", "", "RS256"},
		"said":          {"", "ES256 PS256 RS512", "PS256"},
		"none fits":     {"", "ES256", "RS256"},
		"operator's":    {"RS384", "PS256", "RS384"},
		"not the key's": {"ES256", "", ""},
		"none":          {"none", "", ""},
		"HMAC":          {"HS256", "", ""},
	} {
		s, err := newSigner(key, tt.named, strings.Fields(tt.taken))
		if (err != nil) != (tt.want == "") || err == nil && s.algorithm != tt.want {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
}
