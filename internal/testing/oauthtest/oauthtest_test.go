package oauthtest_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
	"github.com/golang-jwt/jwt/v4"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

var web = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// requestToken posts a form to the token endpoint, and decodes the answer if it is JSON. TestObtain of package oauth
// shows how clients with a secret are refused.
func requestToken(t *testing.T, s *oauthtest.Server, form url.Values) (int, map[string]any) {
	t.Helper()
	res, err := web.PostForm(s.Issuer+"/token", form)
	heraldtest.Must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	heraldtest.Must(t, err)
	var out map[string]any
	_ = json.Unmarshal(b, &out)
	return res.StatusCode, out
}

func newForm(pairs ...string) url.Values {
	out := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		out.Set(pairs[i], pairs[i+1])
	}
	return out
}

// A code is good once, for who asked, with the verifier; a refresh token that was rotated ends the grant when it comes again.
func TestCodeAndRefresh(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t, oauthtest.Options{RotateRefresh: true})
	s.Register("us", "")
	verifier := strings.Repeat("v", 43)
	sum := sha256.Sum256([]byte(verifier))
	code := func() string {
		q := newForm("response_type", "code", "client_id", "us", "redirect_uri", "http://127.0.0.1:9/cb", "state", "st", "resource", s.AgentURL,
			"code_challenge_method", "S256", "code_challenge", base64.RawURLEncoding.EncodeToString(sum[:]))
		back := s.Approve(s.Issuer + "/authorize?" + q.Encode())
		if back.Get("state") != "st" || back.Get("iss") != s.Issuer {
			t.Errorf("%v", back)
		}
		return back.Get("code")
	}
	exchange := func(code, verifier string) (int, map[string]any) {
		return requestToken(t, s, newForm("grant_type", "authorization_code", "client_id", "us", "code", code, "redirect_uri", "http://127.0.0.1:9/cb",
			"code_verifier", verifier, "resource", s.AgentURL))
	}
	if status, _ := exchange(code(), strings.Repeat("w", 43)); status != 400 {
		t.Errorf("another verifier: %d", status)
	}
	once := code()
	status, answer := exchange(once, verifier)
	if status != 200 {
		t.Fatalf("%d %v", status, answer)
	}
	if status, _ := exchange(once, verifier); status != 400 {
		t.Errorf("a second time: %d", status)
	}
	refresh := func(token any) (int, map[string]any) {
		text, _ := token.(string)
		return requestToken(t, s, newForm("grant_type", "refresh_token", "client_id", "us", "refresh_token", text, "resource", s.AgentURL))
	}
	first := answer["refresh_token"]
	if status, answer = refresh(first); status != 200 || answer["refresh_token"] == first {
		t.Errorf("%d %v", status, answer)
	}
	if status, _ := refresh(first); status != 400 {
		t.Errorf("rotated, again: %d", status)
	}
	if status, _ := refresh(answer["refresh_token"]); status != 400 {
		t.Errorf("after that: %d", status)
	}
	made := s.RefreshToken("us", "")
	if status, _ = refresh(made); status != 200 {
		t.Errorf("made here: %d", status)
	}
	s.Unregister("us")
	if status, answer = refresh(made); status != 401 || answer["error"] != "invalid_client" {
		t.Errorf("client forgotten: %d %v", status, answer)
	}
}

// TestAssertion checks that an assertion works once, with the right key, for this issuer, for a short time.
func TestAssertion(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t, oauthtest.Options{})
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	heraldtest.Must(t, err)
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	heraldtest.Must(t, err)
	s.RegisterKey("us", &ec.PublicKey)
	s.RegisterKey("ed", ed.Public())
	good := jwt.MapClaims{"iss": "us", "sub": "us", "aud": s.Issuer, "exp": time.Now().Add(time.Minute).Unix(), "jti": "1"}
	sent := func(algorithm string, claims jwt.MapClaims, change ...any) int {
		all := maps.Clone(claims)
		for i := 0; i < len(change); i += 2 {
			all[change[i].(string)] = change[i+1]
		}
		var key crypto.Signer = ec
		if algorithm == "EdDSA" {
			key = ed
		}
		assertion, err := jwt.NewWithClaims(jwt.GetSigningMethod(algorithm), all).SignedString(key)
		heraldtest.Must(t, err)
		status, _ := requestToken(t, s, newForm("grant_type", "client_credentials", "resource", s.AgentURL, "client_assertion", assertion,
			"client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"))
		return status
	}
	for title, got := range map[string]bool{
		"good":           sent("ES256", good) == 200,
		"again":          sent("ES256", good) == 401,
		"in an array":    sent("ES256", good, "jti", "2", "aud", []string{s.Issuer}) == 200,
		"Ed25519":        sent("EdDSA", good, "jti", "3", "iss", "ed", "sub", "ed") == 200,
		"another issuer": sent("ES256", good, "jti", "4", "aud", s.Issuer+"/token") == 401,
		"expired":        sent("ES256", good, "jti", "5", "exp", time.Now().Add(-time.Minute).Unix()) == 401,
		"long":           sent("ES256", good, "jti", "6", "exp", time.Now().Add(time.Hour).Unix()) == 401,
		"no id":          sent("ES256", good, "jti", "") == 401,
		"another key":    sent("EdDSA", good, "jti", "7") == 401,
		"another client": sent("ES256", good, "jti", "8", "sub", "ed") == 401,
	} {
		if !got {
			t.Error(title)
		}
	}
}
