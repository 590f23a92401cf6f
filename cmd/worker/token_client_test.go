package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/tokens"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/oauthtest"
)

// protects makes agent 8453:42 the agent that s protects.
func (d *desk) protects(s *oauthtest.Server) {
	d.t.Helper()
	d.env = append(d.env, "HERALD_ALLOW_NETWORKS=127.0.0.0/8")
	d.lists(fmt.Sprintf(`{"8453:42":{"url":%q}}`, s.AgentURL))
}

// credential opens the credential that is stored for agent 8453:42 and an origin.
func (d *desk) credential(origin string) (scheme string, c oauth.Credential) {
	d.t.Helper()
	stored := d.reveals("8453:42")[origin]
	scheme, rest, _ := strings.Cut(stored, " ")
	header, plain, _ := strings.Cut(rest, " ")
	c, err := oauth.ParseCredential([]byte(plain))
	if err != nil || header != "Authorization" {
		d.t.Fatalf("%s %s: %v", scheme, header, err)
	}
	return scheme, c
}

func originOf(t testing.TB, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	heraldtest.Must(t, err)
	return u.Scheme + "://" + u.Host
}

// TestTokenSetClient checks that an OAuth client is stored after the operator has confirmed its destination and its
// server has issued a token.
func TestTokenSetClient(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{Scopes: []string{"feedback", "other"}, ChallengeScope: "feedback"})
	d.protects(s)
	s.Register("herald", canary+"-secret")
	origin := originOf(t, s.AgentURL)
	held := d.ended(42, ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true, AgentError: "401"})
	set := []string{"token", "set", "8453:42", "--client-id", "herald"}

	d.says(0, "it wants OAuth: `worker token set 8453:42 --client-id ID`, or `worker token login 8453:42`", "agent", "probe", "8453:42")
	d.says(exitFailed, "note: it wants OAuth: `worker token set CHAIN:AGENT --client-id ID`, or `worker token login CHAIN:AGENT`", "agent", "check", s.AgentURL)
	d.answers(exitMisuse, fmt.Sprintf("is asked for tokens with scope feedback, for resource %[1]s: there is no terminal to ask on whether that is right, so say --origin %[1]s --issuer %[2]s", origin, s.Issuer),
		canary+"-secret", "", set...)
	d.answers(exitFailed, "nothing was stored", canary+"-secret", "n\n", set...)
	d.answers(exitFailed, "nothing was stored: the authorization server refuses: invalid_client", canary+"-wrong", "y\n", set...)
	if len(d.tokens()) != 0 || len(s.Tokens()) != 0 || d.status(held) != "held auth_required" {
		t.Fatalf("%+v", d.tokens())
	}
	out := d.answers(0, fmt.Sprintf("is at %[1]s (from the servers file). Its authorization server is %[2]s, as it says, and is asked for tokens with scope feedback, for resource %[1]s. "+
		"Have that server's tokens sent to that agent", origin, s.Issuer),
		canary+"-secret\n", "y\n", set...)
	heraldtest.Contains(t, "the output", words(out), fmt.Sprintf("is stored for %s (the agent's own path), sent as Authorization: Bearer, had by client credentials from %s; 1 held delivery was released", origin, s.Issuer),
		s.Issuer+" gave a token, good until 20", ", for feedback")
	heraldtest.Equal(t, "d.status(held)", d.status(held), "queued")
	scheme, c := d.credential(origin)
	if scheme != records.SchemeClientCredentials || c.Grant != oauth.GrantClientCredentials || c.Method != oauth.MethodBasic || c.Secret.Reveal() != canary+"-secret" ||
		c.Resource != s.AgentURL || c.Scope != "feedback" || c.ClientID != "herald" {
		t.Errorf("%s %+v", scheme, c)
	}
	if list, err := records.New(d.store).AccessAfter(t.Context(), nil); err != nil || len(list) != 1 || list[0].Issuer != s.Issuer {
		t.Errorf("%+v %v", list, err)
	}

	// Check the other commands that show the credential.
	if l := d.tokens(); len(l) != 1 || l[0].Scheme != records.SchemeClientCredentials || l[0].Issuer != s.Issuer || l[0].Header != "Authorization" {
		t.Errorf("%+v", l)
	}
	d.says(0, fmt.Sprintf("8453:42 %s - oauth_client_credentials Authorization %s ", origin, s.Issuer), "token", "list")
	d.says(0, fmt.Sprintf("token stored for %s (the agent's own path), sent as Authorization: Bearer, had by client credentials from %s", origin, s.Issuer), "agent", "show", "8453:42")
	shown := decode[operator.Agent](t, d.answers(0, "", "", "", "agent", "show", "8453:42", "--json"))
	if len(shown.Tokens) != 1 || shown.Tokens[0].Issuer != s.Issuer || shown.AgentID != "42" {
		t.Errorf("%+v", shown)
	}
	d.says(0, fmt.Sprintf("oauth %s answers; 1 stored credential gets its tokens there", s.Issuer), "doctor")
	a := d.audits()
	heraldtest.Equal(t, "audits", len(a), 1)
	heraldtest.Contains(t, "the audit", string(a[0].Filter), s.Issuer, `"herald"`, `"feedback"`)
	d.nowhere()

	d.says(0, "the token stored for its origin was sent", "agent", "probe", "8453:42", "--send")
	if calls := s.Calls(); len(calls) != 1 || len(s.Tokens()) != 1 || calls[0].Token != s.Tokens()[0].Access {
		t.Errorf("%+v", calls)
	}
	s.Revoke()
	d.says(0, "the agent refused the access token that was at hand, so that another one was asked for and sent", "agent", "probe", "8453:42", "--send")
	if calls := s.Calls(); len(calls) != 2 || len(s.Tokens()) != 2 || calls[1].Token != s.Tokens()[1].Access {
		t.Errorf("%+v", calls)
	}
	s.Unregister("herald")
	s.Revoke()
	d.says(0, "a delivery is held (auth_required): no access token for "+origin, "agent", "probe", "8453:42")
	d.says(0, "is removed", "token", "remove", "8453:42", "--origin", origin)
	if list, err := records.New(d.store).AccessAfter(t.Context(), nil); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
}

// pemKey returns a private key in the format of openssl, and its public key.
func pemKey(t testing.TB) (string, *ecdsa.PublicKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	heraldtest.Must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	heraldtest.Must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), &key.PublicKey
}

// TestTokenSetClientWays checks the options of `token set` without a terminal, and the errors that they can cause.
func TestTokenSetClientWays(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{Methods: []string{oauthtest.MethodPost, oauthtest.MethodKey}})
	d.protects(s)
	key, public := pemKey(t)
	s.RegisterKey("keyed", public)
	s.Register("herald", canary)
	origin := originOf(t, s.AgentURL)
	set := func(more ...string) []string {
		return append([]string{"token", "set", "8453:42", "--client-id"}, more...)
	}
	here := []string{"--origin", origin, "--issuer", s.Issuer}

	out := d.answers(0, "", key, "", set(slices.Concat([]string{"keyed", "--key-id", "k1", "--json"}, here)...)...)
	if c := decode[tokens.Change](t, out); c.Scheme != records.SchemeClientCredentials || c.Issuer != s.Issuer || c.AuthMethod != oauth.MethodKey || c.ClientID != "keyed" {
		t.Errorf("%s", out)
	}
	if _, c := d.credential(origin); c.Key.Reveal() != key || c.KeyID != "k1" || !c.Secret.IsZero() {
		t.Errorf("%+v", c)
	}
	d.answers(0, "is stored for "+origin, canary, "", set(append([]string{"herald"}, here...)...)...)
	_, c := d.credential(origin)
	heraldtest.Equal(t, "the method", c.Method, oauth.MethodPost)
	d.answers(exitFailed, "warning: the authorization server does not name client_secret_basic", canary, "", set(append([]string{"herald", "--auth-method", "client_secret_basic"}, here...)...)...)

	// The server is unavailable: the credential is stored, with a warning.
	nobody := []string{"--origin", "https://other.example", "--issuer", "http://127.0.0.1:1", "--resource", "https://other.example/mcp"}
	d.answers(0, "warning: no token could be requested now", canary, "", set(append([]string{"herald"}, nobody...)...)...)
	if _, c := d.credential("https://other.example"); c.Method != oauth.MethodBasic || c.Resource != "https://other.example/mcp" {
		t.Errorf("%+v", c)
	}
	d.says(0, "warn oauth http://127.0.0.1:1, which gives the tokens of 1 stored credential: ", "doctor")

	asked := len(s.Requests())
	d.answers(0, "is stored for https://other.example", canary, "", set("herald", "--unchecked", "--origin", "https://other.example", "--issuer", s.Issuer, "--resource", s.AgentURL)...)
	heraldtest.Equal(t, "requests despite --unchecked", len(s.Requests()), asked)

	s.NameIssuers("https://one.example", "https://two.example\x1b[2J")
	d.answers(exitMisuse, "the agent names 2 authorization servers, so say --issuer: https://one.example, (an address that cannot be typed safely)", canary, "y\n", set("herald")...)
	d.answers(0, "warning: the agent's authorization server is https://one.example", canary, "", set(append([]string{"herald"}, here...)...)...)
	elsewhere := []string{"--origin", "https://other.example", "--issuer", s.Issuer}
	d.answers(0, "warning: the agent could not be asked for its resource name: agent 8453:42 of registry", canary, "", set(append([]string{"herald"}, elsewhere...)...)...)
	if _, c := d.credential("https://other.example"); c.Resource != "" {
		t.Errorf("%+v", c)
	}
	d.answers(exitMisuse, "and not at https://other.example", canary, "", set("herald", "--origin", "https://other.example")...)
	d.answers(0, "is stored for "+origin, canary, "", set("herald", "--origin", origin, "--issuer", s.Issuer+"/", "--resource", s.AgentURL)...)
	s.Answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasPrefix(r.URL.Path, "/.well-known/oauth-protected-resource") {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	d.answers(exitFailed, "the agent does not name its authorization server: ", canary, "", set(append([]string{"herald"}, here...)...)...)
	d.answers(0, s.Issuer+" gave a token", canary, "", set(append([]string{"herald", "--resource", s.AgentURL}, here...)...)...)
	d.answers(exitMisuse, "and not at https://other.example", canary, "", "token", "login", "8453:42", "--client-id", "herald", "--origin", "https://other.example", "--issuer", s.Issuer)
	d.nowhere()
}

func TestTokenSetClientMisuse(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	key, _ := pemKey(t)
	away := []string{"--origin", "https://agent.example", "--issuer", "https://as.example", "--resource", "https://agent.example/mcp", "--unchecked"}
	for _, c := range []struct {
		says, stdin string
		args        []string
	}{
		{"are for an OAuth client: name it with --client-id", canary, []string{"--issuer", "https://as.example"}},
		{"are for an OAuth client: name it with --client-id", canary, []string{"--unchecked", "--origin", "https://agent.example"}},
		{"--header and --file are not for an OAuth client", canary, []string{"--client-id", "x", "--header", "X-Api-Key"}},
		{"--header and --file are not for an OAuth client", canary, []string{"--client-id", "x", "--file", "/x"}},
		{"without a person a client needs a secret or a key", canary, []string{"--client-id", "x", "--auth-method", "none"}},
		{"--auth-method is not one of none, client_secret_basic", canary, []string{"--client-id", "x", "--auth-method", canary}},
		{"--issuer is no https URL", canary, []string{"--client-id", "x", "--issuer", "as.example"}},
		{"--resource is no absolute http or https URL", canary, []string{"--client-id", "x", "--resource", "mcp"}},
		{"--scope is no list of scopes", canary, []string{"--client-id", "x", "--scope", "a  b"}},
		{"--issuer is no https URL", canary, []string{"--client-id", "x", "--issuer", "https://u:hunter2@as.example"}},
		{"--origin: it holds a user or password", canary, []string{"--client-id", "x", "--origin", "https://u:hunter2@as.example"}},
		{"its chain has no RPC URL; set RPC_URL_8453 (with --origin, --issuer and --resource the agent is not asked)", canary, []string{"--client-id", "x"}},
		{"wants a private key in PEM", canary, append([]string{"--client-id", "x", "--auth-method", "private_key_jwt"}, away...)},
		{"there is a private key on stdin", key, append([]string{"--client-id", "x", "--auth-method", "client_secret_post"}, away...)},
		{"cannot be used", "", append([]string{"--client-id", "x"}, away...)},
		{"cannot be used", "-----BEGIN PRIVATE KEY-----\n" + canary + "\n-----END PRIVATE KEY-----\n", append([]string{"--client-id", "x"}, away...)},
		{"cannot be used", key, append([]string{"--client-id", "x", "--algorithm", "RS256"}, away...)},
	} {
		d.answers(exitMisuse, c.says, c.stdin, "", append([]string{"token", "set", "8453:42"}, c.args...)...)
	}
	for _, args := range [][]string{{canary}, {"--client-secret=" + canary}, {"--client-secret", canary}, {"--api-key=" + canary}, {"--PassWord=" + canary}} {
		d.says(exitMisuse, "a token is given on stdin and never there", append([]string{"token", "set", "8453:42", "--client-id", "x"}, args...)...)
	}
	d.says(exitMisuse, "replace it", "agent", "probe", "8453:42", "--token="+canary)
	d.says(exitMisuse, "unknown flag --issure, did you mean", "token", "set", "8453:42", "--issure=https://as.example")
	if got := d.tokens(); len(got) != 0 || len(d.audits()) != 0 {
		t.Errorf("something was stored: %+v", got)
	}
}

// TestTokenSetOfSilentAgent: the command asks the authorization server even if it cannot ask the agent for its resource.
func TestTokenSetOfSilentAgent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{})
	d.env = append(d.env, "HERALD_ALLOW_NETWORKS=127.0.0.0/8")
	s.Register("herald", canary)
	set := []string{"token", "set", "8453:42", "--client-id", "herald", "--origin", "https://agent.example", "--issuer", s.Issuer}
	d.answers(exitFailed, "nothing was stored: the authorization server refuses: invalid_client", canary+"-wrong", "", set...)
	heraldtest.Equal(t, "stored tokens", len(d.tokens()), 0)
	out, errs := d.give(0, canary, "", set...)
	heraldtest.Contains(t, "the output", words(out+errs), "its chain has no RPC URL; set RPC_URL_8453; workers will ask it", "since it requires a resource: the authorization server refuses: invalid_target",
		"name that with --resource", "is stored for https://agent.example")
	heraldtest.Lacks(t, "the output", out+errs, "--origin", "--issuer")
}

// TestYesIsInterrupted checks that a question ends when the command is interrupted.
func TestYesIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	reads, types := io.Pipe()
	defer func() { _ = types.Close() }()
	cancel()
	a := &command{tty: func() (io.ReadWriteCloser, error) { return &keyboard{Reader: reads}, nil }}
	if agreed, err := a.Confirm(ctx, "Yes?"); agreed || err != nil {
		t.Errorf("%v, %v", agreed, err)
	}
}

// TestIssuerCanBeTyped checks that a shell runs no part of an issuer, which the agent chose, in an option to copy.
func TestIssuerCanBeTyped(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	s := oauthtest.New(t, oauthtest.Options{IssuerPath: "/$(id)"})
	d.protects(s)
	set := []string{"token", "set", "8453:42", "--client-id", "herald"}
	d.says(exitMisuse, fmt.Sprintf("so say --origin %s --issuer '%s'", originOf(t, s.AgentURL), s.Issuer), set...)
	s.NameIssuers(s.Issuer, "https://login.example/';id")
	d.says(exitMisuse, fmt.Sprintf("so say --issuer: '%s', (an address that cannot be typed safely)", s.Issuer), set...)
}
