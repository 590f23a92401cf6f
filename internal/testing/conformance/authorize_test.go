package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
)

func about(t *testing.T, o operator) string {
	t.Helper()
	b, err := json.Marshal(o)
	heraldtest.Must(t, err)
	return string(b)
}

// TestAuthorize checks that the tool is called once, with the newest token, for every kind of client and every location
// of the metadata.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	heraldtest.Must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	heraldtest.Must(t, err)
	text := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	for name, tt := range map[string]struct {
		server   oauthtest.Options
		operator operator
		grants   []string // grant types of the token requests
	}{
		"registers":           {oauthtest.Options{}, operator{}, []string{"authorization_code"}},
		"is a document":       {oauthtest.Options{ClientIDMetadata: true, NoRegistration: true}, operator{}, []string{"authorization_code"}},
		"a secret":            {oauthtest.Options{IssuerPath: "/tenant"}, operator{ID: "us", Secret: "it is: §"}, []string{"client_credentials"}},
		"a secret, posted":    {oauthtest.Options{Methods: []string{oauthtest.MethodPost}, OpenID: true}, operator{ID: "us", Secret: "it is"}, []string{"client_credentials"}},
		"a key":               {oauthtest.Options{RootMetadata: true, NoChallenge: true}, operator{ID: "us", Key: text, Algorithm: "ES256"}, []string{"client_credentials"}},
		"2025-03-26":          {oauthtest.Options{Legacy: true}, operator{}, []string{"authorization_code"}},
		"2025-03-26, nothing": {oauthtest.Options{LegacyEndpoints: true}, operator{}, []string{"authorization_code"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := oauthtest.New(t, tt.server)
			switch {
			case tt.operator.Key != "":
				s.RegisterKey("us", &key.PublicKey)
			case tt.operator.ID != "":
				s.Register("us", tt.operator.Secret)
			}
			if err := runScenario(t.Context(), s.AgentURL, "2025-11-25", about(t, tt.operator)); err != nil {
				t.Error(err)
			}
			if calls := s.Calls(); len(calls) != 1 || calls[0].Token != s.Tokens()[0].Access {
				t.Errorf("%+v", calls)
			}
			if got := grants(s); !slices.Equal(got, tt.grants) {
				t.Errorf("asked for %q", got)
			}
		})
	}
}

func grants(s *oauthtest.Server) []string {
	var out []string
	for _, r := range s.TokenRequests() {
		out = append(out, r.Form.Get("grant_type"))
	}
	return out
}

// TestAuthorizeStepUpByPerson checks that a registered client requests additional scopes with the same client ID,
// together with the scopes that it already has.
func TestAuthorizeStepUpByPerson(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t, oauthtest.Options{Scopes: []string{"read", "write"}, Require: []string{"read"}, ChallengeScope: "read"})
	s.Answer(func(_ http.ResponseWriter, r *http.Request) bool {
		if s.ToAgent(r) && r.Header.Get("Mcp-Method") == "tools/call" {
			s.Require("write")
		}
		return false
	})
	if err := runScenario(t.Context(), s.AgentURL, "2026-07-28", ""); err != nil {
		t.Error(err)
	}
	var asked []oauthtest.Request
	registered := 0
	for _, r := range s.Requests() {
		switch {
		case r.Path == "/authorize":
			asked = append(asked, r)
		case r.Path == "/register":
			registered++
		}
	}
	if registered != 1 || len(asked) != 2 || asked[0].Form.Get("scope") != "read" || asked[1].Form.Get("scope") != "read write" ||
		asked[0].Form.Get("client_id") != asked[1].Form.Get("client_id") {
		t.Errorf("%d registrations, %+v", registered, asked)
	}
}

// TestAuthorizeStepUp checks that a call that needs more scope than the listing gets a token for both. An agent that
// refuses every token is not retried forever.
func TestAuthorizeStepUp(t *testing.T) {
	t.Parallel()
	s := oauthtest.New(t, oauthtest.Options{Scopes: []string{"read", "write", "never"}, Require: []string{"read"}, ChallengeScope: "read"})
	s.Register("us", "secret")
	s.Answer(func(_ http.ResponseWriter, r *http.Request) bool {
		if s.ToAgent(r) && r.Header.Get("Mcp-Method") == "tools/call" {
			s.Require("write")
		}
		return false
	})
	if err := runScenario(t.Context(), s.AgentURL, "2026-07-28", about(t, operator{ID: "us", Secret: "secret"})); err != nil {
		t.Error(err)
	}
	tokens := s.Tokens()
	if len(tokens) != 2 || tokens[0].Scope != "read" || tokens[1].Scope != "read write" || len(s.Calls()) != 1 {
		t.Errorf("%+v, %d calls", tokens, len(s.Calls()))
	}
	s.Require("read")
	s.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !s.ToAgent(r) || r.Header.Get("Authorization") == "" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Bearer error="insufficient_scope", scope="never"`)
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	err := runScenario(t.Context(), s.AgentURL, "2026-07-28", about(t, operator{ID: "us", Secret: "secret"}))
	if err == nil || !strings.Contains(err.Error(), "refused after 2 new tokens") || len(s.Tokens()) != 4 {
		t.Errorf("%v, %d tokens", err, len(s.Tokens()))
	}
}

// TestAuthorizeOneIssuer checks that the operator's client is used with its own authorization server only. A different
// server that the agent names receives no request.
func TestAuthorizeOneIssuer(t *testing.T) {
	t.Parallel()
	s, other := oauthtest.New(t, oauthtest.Options{}), oauthtest.New(t, oauthtest.Options{})
	s.NameIssuers(other.Issuer)
	err := runScenario(t.Context(), s.AgentURL, "2025-11-25", about(t, operator{ID: "us", Secret: "secret", Issuer: s.Issuer}))
	if err == nil || !strings.Contains(err.Error(), other.Issuer) {
		t.Error(err)
	}
	if got := other.Requests(); len(got) != 0 {
		t.Errorf("the other was asked: %+v", got)
	}
}

// TestAuthorizeRefusesAnswer checks that an invalid redirect of the authorization page causes no token request.
func TestAuthorizeRefusesAnswer(t *testing.T) {
	t.Parallel()
	for name, location := range map[string]string{
		"elsewhere":     "https://example.com/callback?code=x&state=STATE",
		"no redirect":   "",
		"another state": redirect + "?code=x&state=y",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := oauthtest.New(t, oauthtest.Options{NoIss: true})
			s.Answer(func(w http.ResponseWriter, r *http.Request) bool {
				if s.ToAgent(r) || r.URL.Path != "/authorize" {
					return false
				}
				if location != "" {
					w.Header().Set("Location", strings.Replace(location, "STATE", r.URL.Query().Get("state"), 1))
					w.WriteHeader(http.StatusFound)
				}
				return true
			})
			if err := runScenario(t.Context(), s.AgentURL, "2025-11-25", ""); err == nil {
				t.Error("taken")
			}
			if got := s.TokenRequests(); len(got) != 0 {
				t.Errorf("a token was asked for: %+v", got)
			}
		})
	}
}
