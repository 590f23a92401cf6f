package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
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
			if err := tryScenario(t, s.AgentURL, "2025-11-25", about(t, tt.operator)); err != nil {
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

// TestAuthorizeOneIssuer checks that the operator's client is used with its own authorization server only. A different
// server that the agent names receives no request.
func TestAuthorizeOneIssuer(t *testing.T) {
	t.Parallel()
	s, other := oauthtest.New(t, oauthtest.Options{}), oauthtest.New(t, oauthtest.Options{})
	s.NameIssuers(other.Issuer)
	err := tryScenario(t, s.AgentURL, "2025-11-25", about(t, operator{ID: "us", Secret: "secret", Issuer: s.Issuer}))
	if err == nil || !strings.Contains(err.Error(), other.Issuer) {
		t.Error(err)
	}
	if got := other.Requests(); len(got) != 0 {
		t.Errorf("the other was asked: %+v", got)
	}
}
