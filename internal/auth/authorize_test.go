package auth

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// plainToken is in the tokens of these tests. No error may hold it.
const plainToken = "canary-4c6f7264"

// storedToken returns a bearer token of agent 1:7 for a URL.
func storedToken(keys *secret.Keyset, rawURL string, adapt ...func(*records.Token)) records.Token {
	token := records.Token{Agent: erc8004.Agent{ChainID: 1, Registry: "0xaa", ID: "7"}, Origin: must(netguard.CredentialOriginOf(rawURL)),
		Path: CredentialPath(rawURL), Scheme: records.SchemeBearer, Header: "Authorization"}
	for _, f := range adapt {
		f(&token)
	}
	if token.Ciphertext == nil {
		token.Ciphertext = must(keys.Seal([]byte(plainToken), token.Binding()))
	}
	return token
}

// newAuthorizer returns an Authorizer over a ledger that holds one token.
func newAuthorizer(keys *secret.Keyset, token records.Token) *Authorizer {
	ledger := &countingTokens{tokens: []records.Token{token}}
	return must(New(Config{Ledger: ledger, Records: ledger, Keys: keys, Classify: classify.Error, OAuth: &authority{}}))
}

func endpointAt(rawURL string) mcpcall.Endpoint {
	return mcpcall.Endpoint{Transport: mcpcall.TransportHTTP, URL: rawURL}
}

// wantHeld checks that an error holds a delivery for want of a credential, with a sentence that says this.
func wantHeld(t testing.TB, err error, says string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %q", says)
	}
	v := classify.Error(err)
	if v.Reason != outcome.AuthRequired || !strings.Contains(v.Text, says) || strings.Contains(v.Text, plainToken) {
		t.Errorf("%s: %s; want %q", v.Reason, v.Text, says)
	}
}

// TestTokensKeepTheirPath: a token is sent to the origin and path that it was stored for, and below, even if the registration changes.
func TestTokensKeepTheirPath(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	const at = "https://agent.example"
	type row struct {
		stored, now string
		goes        bool
	}
	rows := []row{{at + "/victim", at + "/victim", true}, {at + "/victim", at + "/victim/mcp", true}, {at + "/victim", at + "/victim/", true},
		{at + "/victim", at + "/victim?x=/../evil", true}, {at, at + "/any/where", true}, {at + "/", at + "/any/../where", true},
		{at + "/victim/a%2fb", at + "/victim/a%2fb", true}, {at + "/victim", at + "/victim/a;b", true}, {at + "/x?y", at + "/x?z", true},
		{at, "HTTPS://Agent.Example:443/", true},
		{at + "/victim", at + "/evil", false}, {at + "/victim", at + "/victims", false}, {at + "/victim", at + "/", false}, {at + "/victim", at, false},
		{at + "/victim/mcp", at + "/victim", false}, {at + "/victim/", at + "/victim", false}, {at + "/victim", at + "/Victim", false},
		{at + "/victim", at + "/%76ictim", false}, {at + "/x?y", at + "/mcp", false},
		{at, "https://evil.example", false}, {at, at + ":8443", false}, {at, "http://agent.example", false}, {at, "http://agent.example:443", false},
		{"https://127.0.0.1", "https://localhost", false}, {"https://127.0.0.1.example", "https://127.0.0.1", false},
		{"https://apple.example", "https://аpple.example", false}}
	for _, trick := range tricks {
		rows = append(rows, row{at + "/victim", at + trick, false})
	}
	for _, tt := range rows {
		a, err := newAuthorizer(keys, storedToken(keys, tt.stored)).Authorize(t.Context(), Subject{Agent: storedToken(keys, at).Agent}, endpointAt(tt.now))
		if !tt.goes {
			wantHeld(t, err, "the agent moved: it is at ")
			wantHeld(t, err, "its token was stored for "+strings.TrimSuffix(strings.TrimSuffix(tt.stored, "?y"), "/"))
			wantHeld(t, err, "`worker token set 1:7 --origin ")
		} else if err != nil || a.Endpoint.Headers["Authorization"].Reveal() != "Bearer "+plainToken || a.Note() != ", with the token stored for it" {
			t.Errorf("%q at %q: %v", tt.stored, tt.now, err)
		}
	}
	a, err := newAuthorizer(keys, storedToken(keys, at)).Authorize(t.Context(), Subject{}, endpointAt("https://agent.example@evil.example"))
	if err != nil || len(a.Endpoint.Headers) > 0 { // the guard says why it is not called
		t.Errorf("with user information: %v", err)
	}
}

// TestJobsNameNoPathOfAToken: an endpoint that a job names gets a token only if the token was stored for exactly that URL.
// A refusal there does not concern the registered endpoint.
func TestJobsNameNoPathOfAToken(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	const at = "https://agent.example"
	for _, tt := range []struct {
		stored, named string
		goes          bool
	}{{"/victim", "/victim", true}, {"/victim", "/victim/below", false}, {"/victim", "/victim/", false}, {"/victim", "/evil", false},
		{"/victim", "/victim?x", false}, {"/victim", "/victim?", false}, {"/", "/evil", false}, {"", "/evil", false}, {"/", "", true}} {
		a, err := newAuthorizer(keys, storedToken(keys, at+tt.stored)).Authorize(t.Context(), Subject{NamedByJob: true}, endpointAt(at+tt.named))
		if sent, _ := a.Stored(); err != nil || sent != tt.goes || len(a.Endpoint.Headers) > 0 != tt.goes {
			t.Errorf("%q named %q: sent %t, %v", tt.stored, tt.named, sent, err)
		}
	}

	z := newAuthorizer(keys, storedToken(keys, at+"/victim"))
	named := must(z.Authorize(t.Context(), Subject{NamedByJob: true}, endpointAt(at+"/evil")))
	refused := &mcpcall.CallError{Stage: mcpcall.StageOpen, Status: 401, Err: errors.New("HTTP 401")}
	v := z.ObserveFailure(named, refused, classify.Error(refused))
	heraldtest.Equal(t, "the reason", v.Reason, outcome.AuthRequired)
	heraldtest.Contains(t, "the verdict", v.Text, "it is for "+at+"/victim, and an endpoint that a job names",
		"`worker token set 1:7 --origin "+at+"/evil`")
	_, err := z.Authorize(t.Context(), Subject{NamedByJob: true}, endpointAt(at+"/evil"))
	wantHeld(t, err, "(HTTP 401 or 403) and is not asked again for 10m0s: ")
	a := must(z.Authorize(t.Context(), Subject{}, endpointAt(at+"/victim")))
	heraldtest.Equal(t, "the registered endpoint has its token", a.token != nil, true)
}

// TestTokensWithoutAPath: a token that a version before stored is bound to the first registered URL, and goes where a job says
// at no time.
func TestTokensWithoutAPath(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	const at = "https://agent.example"
	tokens := &countingTokens{tokens: []records.Token{storedToken(keys, at, func(t *records.Token) { t.Path = "" })}}
	z, other := must(New(Config{Ledger: tokens, Records: tokens, Keys: keys, Classify: classify.Error, OAuth: &authority{}})), must(New(Config{Ledger: tokens, Records: tokens, Keys: keys, Classify: classify.Error, OAuth: &authority{}}))
	for _, named := range []string{"/evil", "/victim", ""} {
		a := must(z.Authorize(t.Context(), Subject{NamedByJob: true}, endpointAt(at+named)))
		heraldtest.Equal(t, "the token that a job has sent to "+named, a.token, nil)
	}
	must(other.Authorize(t.Context(), Subject{NamedByJob: true}, endpointAt(at))) // it reads the token without a path
	if a, err := z.Authorize(t.Context(), Subject{}, endpointAt(at+"/victim")); err != nil || a.token == nil || a.token.Path != "/victim" {
		t.Errorf("%+v, %v", a, err)
	}
	for _, z := range []*Authorizer{z, other} {
		_, err := z.Authorize(t.Context(), Subject{}, endpointAt(at+"/evil"))
		wantHeld(t, err, "its token was stored for "+at+"/victim")
	}
	tokens.tokens[0].Path, tokens.err = "", ledger.ErrNotFound
	_, err := other.coversEndpoint(t.Context(), &tokens.tokens[0], Subject{}, endpointAt(at))
	heraldtest.Equal(t, "the reason", classify.Error(err).Reason, outcome.Throttled)
}

// TestOAuthKeepsItsPath: an access token goes no further than a token that is sent as it is stored, and none is asked for.
func TestOAuthKeepsItsPath(t *testing.T) {
	t.Parallel()
	for option, cred := range map[string]oauth.Credential{"token set 1:7 --origin https://evil.example/mcp --client-id …": clientOf(""), "token login 1:7": loginOf("r")} {
		w := newRenewing(t, cred)
		w.token.Path = "/mcp"
		z := w.newWorker()
		for _, elsewhere := range []string{"https://evil.example/mcp", renewOrigin + "/evil/mcp"} {
			_, err := z.Authorize(t.Context(), Subject{Agent: w.token.Agent}, endpointAt(elsewhere))
			wantHeld(t, err, "the agent moved: it is at "+elsewhere)
			if elsewhere == "https://evil.example/mcp" {
				wantHeld(t, err, "`worker "+option)
			}
		}
		heraldtest.Equal(t, "requests for tokens", w.countRequests(), 0)
		heraldtest.Equal(t, "requests for metadata", w.looked, 0)
	}
}

// TestOpenToken: each scheme, and what keeps a token from being sent.
func TestOpenToken(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	const at = "https://agent.example"
	path := filepath.Join(t.TempDir(), "token")
	file := func(header string) func(*records.Token) {
		return func(t *records.Token) {
			t.Scheme, t.Header = records.SchemeFile, header
			t.Ciphertext = must(keys.Seal([]byte(path), t.Binding()))
		}
	}
	send := func(adapt ...func(*records.Token)) (map[string]secret.Secret, error) {
		a, err := newAuthorizer(keys, storedToken(keys, at, adapt...)).Authorize(t.Context(), Subject{}, endpointAt(at))
		if err != nil {
			return nil, err
		}
		return a.Endpoint.Headers, nil
	}
	must(0, os.WriteFile(path, []byte(plainToken+"1\n"), 0o600))
	z := newAuthorizer(keys, storedToken(keys, at, file("Authorization")))
	for _, text := range []string{"2", "3\r\n"} { // it is read again when it changes
		must(0, os.WriteFile(path, []byte(plainToken+text), 0o600))
		a := must(z.Authorize(t.Context(), Subject{}, endpointAt(at)))
		heraldtest.Equal(t, "the header", a.Endpoint.Headers["Authorization"].Reveal(), "Bearer "+plainToken+text[:1])
	}
	heraldtest.Equal(t, "of a file", must(send(file("X-Api-Key")))["X-Api-Key"].Reveal(), plainToken+"3")
	another := func(t *records.Token) { t.Scheme, t.Header = records.SchemeHeader, "X-Api-Key" }
	heraldtest.Equal(t, "another header", must(send(another))["X-Api-Key"].Reveal(), plainToken)
	for says, spoil := range map[string]func() error{
		"cannot be read: no such file":                           func() error { return nil },
		"is no regular file":                                     func() error { return os.Mkdir(path, 0o700) },
		"holds no token: it is empty":                            func() error { return os.WriteFile(path, nil, 0o600) },
		"holds no token: it has characters other than printable": func() error { return os.WriteFile(path, []byte(plainToken+"\n"+plainToken), 0o600) },
		"holds no token: it is longer than":                      func() error { return os.WriteFile(path, []byte(strings.Repeat("x", MaxToken+1)), 0o600) },
		"holds no token: it begins with the word":                func() error { return os.WriteFile(path, []byte("Bearer "+plainToken), 0o600) },
	} {
		must(0, errors.Join(os.RemoveAll(path), spoil()))
		_, err := send(file("Authorization"))
		wantHeld(t, err, "the file that holds the token stored for "+at+" "+says)
		heraldtest.Lacks(t, "the error", err.Error(), path)
	}

	past := time.Now().Add(-time.Minute)
	_, err := send(func(t *records.Token) { t.ExpiresAt = &past })
	wantHeld(t, err, "expired at "+past.UTC().Format(time.RFC3339))
	const moved, lost = "it was sealed for another agent, origin or header, or is damaged", "is not in HERALD_KEYSET"
	good := storedToken(keys, "https://other.example").Ciphertext
	for _, tt := range []struct {
		says  string
		spoil func(*records.Token)
	}{
		{moved, func(t *records.Token) { t.Ciphertext = good }}, // of another origin
		{moved, func(t *records.Token) {
			t.Ciphertext = storedToken(keys, at, func(t *records.Token) { t.ID = "8" }).Ciphertext
		}},
		{moved, func(t *records.Token) { t.Ciphertext, t.Header = storedToken(keys, at).Ciphertext, "X-Other" }},
		{moved, func(t *records.Token) {
			t.Ciphertext, t.Scheme = storedToken(keys, at).Ciphertext, records.SchemeHeader
		}},
		{moved, func(t *records.Token) { t.Ciphertext = storedToken(keys, at).Ciphertext[:40] }},
		{"is cut short", func(t *records.Token) { t.Ciphertext = good[:10] }},
		{lost, func(t *records.Token) { t.Ciphertext = append([]byte{1, 0, 0, 0, 1}, good[5:]...) }},
		{"is of scheme \"magic\", which this version cannot send", func(t *records.Token) { t.Scheme = "magic" }},
		{"cannot be sent: it is empty", func(t *records.Token) { t.Ciphertext = must(keys.Seal(nil, t.Binding())) }},
	} {
		_, err := send(tt.spoil)
		wantHeld(t, err, tt.says)
	}
}

// TestOtherHeadersWin: the headers of a job and those of the servers file win over a stored token.
func TestOtherHeadersWin(t *testing.T) {
	t.Parallel()
	keys := must(secret.Create())
	const at = "https://agent.example"
	z := newAuthorizer(keys, storedToken(keys, at+"/mcp"))
	listed := endpointAt(at + "/elsewhere")
	listed.Listed = true
	heraldtest.Equal(t, "a token at another path", must(z.Authorize(t.Context(), Subject{}, listed)).token, nil)
	listed.URL = at + "/mcp/below"
	heraldtest.Equal(t, "a token below the path", must(z.Authorize(t.Context(), Subject{}, listed)).token != nil, true)
	listed.Headers = map[string]secret.Secret{"X-File": secret.New("filed")}
	if a, err := z.Authorize(t.Context(), Subject{}, listed); err != nil || a.token != nil || len(a.Endpoint.Headers) != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	refused := &mcpcall.CallError{Stage: mcpcall.StageOpen, Status: 401, Err: errors.New("HTTP 401")}
	const mend, give = "correct its auth or headers in the servers file, which releases its held deliveries", "give it auth or headers in the servers file, or `worker token set`"
	for says, e := range map[string]mcpcall.Endpoint{mend: listed, give: {Transport: mcpcall.TransportHTTP, URL: "https://other.example", Listed: true}} {
		z := newAuthorizer(keys, storedToken(keys, at+"/mcp"))
		v := z.ObserveFailure(must(z.Authorize(t.Context(), Subject{}, e)), refused, classify.Error(refused))
		_, err := z.Authorize(t.Context(), Subject{}, e) // is held without a call
		wantHeld(t, err, "is not asked again for 10m0s: "+says)
		heraldtest.Contains(t, "the verdict", v.Text, ": "+says)
	}
	own := must(z.Authorize(t.Context(), Subject{OwnHeaders: true}, endpointAt(at+"/mcp")))
	heraldtest.Equal(t, "the token", own.token, nil)
	heraldtest.Equal(t, "the note", own.Note(), "")
	if v := z.ObserveFailure(own, refused, classify.Error(refused)); v.Reason != outcome.AuthFailed || v.Ending != outcome.Rejected {
		t.Errorf("%+v", v)
	}
}

// TestWithTokenRefresh: a refused access token is replaced once in the life of an Authorization.
func TestWithTokenRefresh(t *testing.T) {
	t.Parallel()
	invalid := &mcpcall.CallError{Stage: mcpcall.StageCall, Status: 401, Challenge: []string{`Bearer error="invalid_token"`}, Err: errors.New("HTTP 401")}
	narrow := &mcpcall.CallError{Stage: mcpcall.StageCall, Status: 403, Challenge: []string{`Bearer error="insufficient_scope", scope="feedback"`}, Err: errors.New("HTTP 403")}
	nameless := &mcpcall.CallError{Stage: mcpcall.StageCall, Status: 403, Challenge: []string{`Bearer error="insufficient_scope"`}, Err: errors.New("HTTP 403")}
	silent := &mcpcall.CallError{Stage: mcpcall.StageCall, Status: 401, Err: errors.New("HTTP 401")}
	forbidden := &mcpcall.CallError{Stage: mcpcall.StageCall, Status: 403, Err: errors.New("HTTP 403")}
	other := errors.New("something else")
	login := loginOf("r")
	login.Scope = "read"
	for name, tt := range map[string]struct {
		cred      oauth.Credential
		answers   []error // of the agent, one for each call
		says      string  // of the error; "" none
		why       outcome.Reason
		requests  int
		refreshed bool
	}{
		"taken":                     {clientOf(""), []error{nil}, "", "", 1, false},
		"something else":            {clientOf(""), []error{other}, "something else", outcome.InternalError, 1, false},
		"forbidden":                 {clientOf(""), []error{forbidden}, "HTTP 403", outcome.AuthRequired, 1, false},
		"renewed":                   {clientOf(""), []error{invalid, nil}, "", "", 2, true},
		"renewed, and then it asks": {clientOf(""), []error{invalid, other}, "something else", outcome.InternalError, 2, true},
		"refused twice":             {clientOf(""), []error{invalid, invalid}, "another one is asked for in 2s", outcome.ServerError, 2, true},
		"refused without a word":    {clientOf(""), []error{silent, silent}, "had just given for it (HTTP 401); another one", outcome.ServerError, 2, true},
		"a login":                   {login, []error{narrow}, "`worker token login 1:7` --scope 'read feedback'", outcome.AuthRequired, 1, true},
		"a login, no scope named":   {login, []error{nameless}, "`worker token login 1:7` --scope …", outcome.AuthRequired, 1, true},
		"more than allowed":         {clientOf("read"), []error{narrow}, "--client-id …` --scope 'read feedback'", outcome.AuthRequired, 1, true},
		"never content":             {clientOf("feedback"), []error{narrow, narrow}, "HTTP 403", outcome.AuthRequired, 2, true},
	} {
		w := newRenewing(t, tt.cred)
		w.token.Path = "/mcp"
		z := w.newWorker()
		a := must(z.Authorize(t.Context(), Subject{Agent: w.token.Agent}, endpointAt(renewOrigin+"/mcp")))
		calls := 0
		err := z.WithTokenRefresh(t.Context(), a, func(_ context.Context, e mcpcall.Endpoint) error {
			calls++
			if i := len(w.asked); i != calls || e.Headers["Authorization"].Reveal() != "Bearer access-"+string(rune('0'+i)) {
				t.Errorf("%s: call %d has token %d", name, calls, i)
			}
			return tt.answers[calls-1]
		})
		if calls != len(tt.answers) || w.countRequests() != tt.requests || a.Refreshed() != tt.refreshed {
			t.Errorf("%s: %d calls, %d token requests, refreshed %t", name, calls, w.countRequests(), a.Refreshed())
		}
		if tt.says == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		} else if tt.says != "" {
			v := classify.Error(err)
			if v.Reason != tt.why || !strings.Contains(v.Text, tt.says) {
				t.Errorf("%s: %s: %s", name, v.Reason, v.Text)
			}
			z.ObserveFailure(a, err, v)
		}
		if tt.answers[0] == narrow { // the agent is not asked again with each delivery
			_, err := z.Authorize(t.Context(), Subject{Agent: w.token.Agent}, endpointAt(renewOrigin+"/mcp"))
			wantHeld(t, err, "not asked again for 10m0s")
			if len(tt.answers) == 1 { // the later deliveries name the scope too
				wantHeld(t, err, tt.says)
			}
		}
		if tt.refreshed && tt.says == "" { // a second refusal in the same attempt
			for refused, why := range map[error]outcome.Reason{narrow: outcome.AuthRequired, invalid: outcome.ServerError} {
				err := z.WithTokenRefresh(t.Context(), a, func(context.Context, mcpcall.Endpoint) error { return refused })
				if v := classify.Error(err); v.Reason != why || errors.Is(err, narrow) != (refused == narrow) || w.countRequests() != tt.requests {
					t.Errorf("%s: %s: %s, %d token requests", name, v.Reason, v.Text, w.countRequests())
				}
			}
		}
		if _, oauth := a.Stored(); !oauth || !strings.Contains(a.Note(), "access token") {
			t.Errorf("%s: %q", name, a.Note())
		}
	}
	// A token that was not sent is not renewed.
	w := newRenewing(t, clientOf(""))
	bare := &Authorization{Endpoint: endpointAt(renewOrigin + "/mcp")}
	err := w.newWorker().WithTokenRefresh(t.Context(), bare, func(context.Context, mcpcall.Endpoint) error { return invalid })
	if !errors.Is(err, invalid) || bare.Refreshed() || w.countRequests() != 0 {
		t.Errorf("%v, %d token requests", err, w.countRequests())
	}
}

// TestRefusedTokensOfTwoWorkers: while one worker was idle, the other one renewed the access token, and the new one was
// revoked too. The idle worker, which still has the first, sends the second and asks for a third within one attempt. If
// the agent also refuses the third, which is fresh, the attempt fails.
func TestRefusedTokensOfTwoWorkers(t *testing.T) {
	t.Parallel()
	invalid := &mcpcall.CallError{Stage: mcpcall.StageCall, Status: 401, Challenge: []string{`Bearer error="invalid_token"`}, Err: errors.New("HTTP 401")}
	for name, third := range map[string]error{"accepted": nil, "refused": invalid} {
		w := newRenewing(t, clientOf(""))
		w.token.Path = "/mcp"
		idle, busy := w.newWorker(), w.newWorker()
		attempt := func(z *Authorizer, answers map[string]error, want ...string) error {
			a := must(z.Authorize(t.Context(), Subject{Agent: w.token.Agent}, endpointAt(renewOrigin+"/mcp")))
			var sent []string
			err := z.WithTokenRefresh(t.Context(), a, func(_ context.Context, e mcpcall.Endpoint) error {
				sent = append(sent, strings.TrimPrefix(e.Headers["Authorization"].Reveal(), "Bearer "))
				return answers[sent[len(sent)-1]]
			})
			heraldtest.Equal(t, name+": tokens that were sent", sent, want)
			return err
		}
		heraldtest.Must(t, attempt(idle, nil, "access-1"))
		heraldtest.Must(t, attempt(busy, map[string]error{"access-1": invalid}, "access-1", "access-2"))
		w.Advance(time.Second)
		err := attempt(idle, map[string]error{"access-1": invalid, "access-2": invalid, "access-3": third}, "access-1", "access-2", "access-3")
		if (err == nil) != (third == nil) || w.countRequests() != 3 {
			t.Errorf("%s: %v after %d token requests", name, err, w.countRequests())
		}
	}
}
