package trial

import (
	"bytes"
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
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/testing/oauthtest"
)

// granting is an authorization server whose agent is a keeper. Both repeat the credentials that they receive.
type granting struct {
	*oauthtest.Server
	way       *way
	stumbles  atomic.Bool // the next token request is answered with 503
	stumbled  atomic.Int64
	refused   atomic.Int64
	spent     atomic.Int64 // number of oldest access tokens that the agent rejects
	clientIDs int
}

// oauthLife is the lifetime of access tokens. It is so short that they are renewed within the test.
const oauthLife = 3 * time.Second

// oauth adds OAuth's grants and the client authentication methods.
func (w *canaryWorld) oauth(add func(string) *way) (all []*granting) {
	w.t.Helper()
	for _, method := range []string{oauthtest.MethodBasic, oauthtest.MethodPost, oauthtest.MethodKey, oauthtest.MethodNone} {
		g := w.newGranting(add("OAuth, "+method), oauthtest.Options{Methods: []string{method}, NoRegistration: true, RotateRefresh: true, Lifetime: oauthLife,
			Prefix: w.secret("what every token of "+method+" begins with", "-")})
		switch method {
		case oauthtest.MethodKey:
			g.way.give = func() { g.store(w, g.newKey(w), "--auth-method", method, "--key-id", "first") }
		case oauthtest.MethodNone:
			g.way.give = func() { w.login(g) }
		default:
			g.way.give = func() {
				secret := w.secret("a client secret for "+method, `/+%&="`)
				g.Register(g.newClient(), secret)
				g.store(w, secret+"\n", "--auth-method", method)
			}
		}
		all = append(all, g)
	}
	return all
}

func (w *canaryWorld) newGranting(v *way, o oauthtest.Options) *granting {
	w.t.Helper()
	g := &granting{Server: oauthtest.New(w.t, o), way: v}
	v.url = g.AgentURL
	v.agent.want("Bearer ")
	v.agent.challenge = fmt.Sprintf(`Bearer resource_metadata="%s/.well-known/oauth-protected-resource/mcp"`, g.origin())
	g.Answer(g.answer)
	return g
}

func (g *granting) origin() string { return strings.TrimSuffix(g.AgentURL, "/mcp") }

func (g *granting) newClient() string {
	g.clientIDs++
	return g.client()
}

func (g *granting) client() string { return fmt.Sprintf("client-%d-of-%d", g.clientIDs, g.way.number) }

// newKey registers a new key at the server and returns it as PEM.
func (g *granting) newKey(w *canaryWorld) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	w.must(err)
	// The secret part of the key is its number. The rest is public or the same in every key.
	number, err := key.Bytes()
	w.must(err)
	w.keep("the number of a client's key", string(number))
	g.RegisterKey(g.newClient(), &key.PublicKey)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// store stores the client with `worker token set`.
func (g *granting) store(w *canaryWorld, stdin string, flags ...string) {
	args := append([]string{"token", "set", fmt.Sprintf("8453:%d", g.way.number), "--client-id", g.client(), "--origin", g.AgentURL, "--issuer", g.Issuer,
		"--resource", g.AgentURL}, flags...)
	if out := w.run(stdin, args...); !strings.Contains(out, "stored for "+g.AgentURL) {
		w.t.Errorf("%s: %s", g.way.name, out)
	}
	g.stumbles.Store(true)
}

// login logs in like a person in a browser.
func (w *canaryWorld) login(g *granting) {
	w.t.Helper()
	if ended := w.logIn(g); ended != nil {
		w.t.Errorf("%s: %v", g.way.name, ended)
	}
	g.stumbles.Store(true)
}

// logIn runs the login command and returns its error.
func (w *canaryWorld) logIn(g *granting) (ended error) {
	w.t.Helper()
	g.Register(g.newClient(), "")
	var out bytes.Buffer
	p, err := w.start(Program{Name: "command-login", Path: w.Programs.worker(), Env: w.environment(), out: &out,
		Args: []string{"token", "login", fmt.Sprintf("8453:%d", g.way.number), "--client-id", g.client(), "--origin", g.AgentURL, "--issuer", g.Issuer, "--resource", g.AgentURL}})
	w.must(err)
	var page string
	err = Until(w.ctx, pollQuick, "the address to log in at", func() (bool, error) {
		select {
		case <-p.Done():
			return false, fmt.Errorf("the login has ended: %s", tail(p.Log()))
		default:
		}
		for l, err := range p.Lines() {
			if err != nil {
				return false, err
			}
			if strings.HasPrefix(l.Message, "http") {
				page = l.Message
			}
		}
		return page != "", nil
	})
	w.must(err)
	w.lookAtProcesses()
	w.see("commands", "the page after a login", []byte(g.Visit(page)))
	ended = p.Wait(w.ctx)
	w.see("commands", "worker token login", out.Bytes())
	return ended
}

// renew makes the agents refuse tokens that have not expired, so that Herald requests new ones.
func (w *canaryWorld) renew(all []*granting) {
	w.t.Helper()
	var ways []*way
	for _, g := range all {
		g.Revoke()
		g.spent.Store(int64(len(g.Tokens())))
		w.put(g.way, "", "answer")
		ways = append(ways, g.way)
	}
	w.awaitAll("tokens to be renewed", ways, Row.Final)
	for _, g := range all {
		if n := int64(len(g.Tokens())); n == g.spent.Load() {
			w.t.Errorf("%s: none of its %d access tokens was renewed", g.way.name, n)
		}
	}
}

// refuseCommands makes the authorization servers refuse the operators' commands.
func (w *canaryWorld) refuseCommands(all []*granting) {
	w.t.Helper()
	for _, g := range all {
		before := g.refused.Load()
		if strings.HasSuffix(g.way.name, oauthtest.MethodNone) {
			_ = w.logIn(g)
		} else {
			stdin := w.secret("a client secret that is refused", "/+")
			if strings.HasSuffix(g.way.name, oauthtest.MethodKey) {
				stdin = g.newKey(w)
			}
			w.run(stdin, "token", "set", fmt.Sprintf("8453:%d", g.way.number), "--client-id", "another", "--origin", g.AgentURL, "--issuer", g.Issuer, "--resource", g.AgentURL)
		}
		if g.refused.Load() == before {
			w.t.Errorf("%s: the command was not refused", g.way.name)
		}
	}
}

// answer passes a request with a valid token to the keeper. If the authorization server fails or refuses, it repeats
// the request in its answer.
func (g *granting) answer(w http.ResponseWriter, r *http.Request) bool {
	k := g.way.agent
	if g.ToAgent(r) {
		_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		known := slices.ContainsFunc(g.Tokens()[g.spent.Load():], func(t oauthtest.Token) bool { return t.Access == token && time.Now().Before(t.Expires) })
		if r.Method != http.MethodPost || !known {
			return false
		}
		k.ServeHTTP(w, r)
		return true
	}
	if r.URL.Path != "/token" {
		return false
	}
	body, _ := io.ReadAll(r.Body)
	form, _ := url.ParseQuery(string(body))
	_, pair, _ := r.BasicAuth()
	received := []string{pair, strings.TrimPrefix(r.Header.Get("Authorization"), "Basic ")} // the secrets come first, because Herald shortens quoted text
	for _, name := range []string{"client_secret", "refresh_token", "client_assertion", "code", "code_verifier", "client_id"} {
		received = append(received, form.Get(name))
	}
	received = slices.DeleteFunc(received, func(s string) bool { return s == "" })
	switch {
	case g.stumbles.CompareAndSwap(true, false):
		g.stumbled.Add(1)
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, sentence(received))
	case k.state.Load() == refuses:
		g.refused.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":"invalid_grant","error_description":%s,"error_uri":%s}`, inJSON(sentence(received))[2], inJSON(sentence(received))[0])
	default:
		r.Body = io.NopCloser(bytes.NewReader(body))
		return false
	}
	return true
}

// keepIssued adds every credential that Herald and the authorization servers exchanged to the secrets.
func (w *canaryWorld) keepIssued(all []*granting) {
	w.t.Helper()
	for _, g := range all {
		after := func(text string) string { return text[strings.LastIndexByte(text, '-')+1:] } // the random part
		for _, t := range g.Tokens() {
			w.keep("an access token of "+g.way.name, after(t.Access))
		}
		for _, r := range g.TokenRequests() {
			for name, text := range map[string]string{"refresh token": after(r.Form.Get("refresh_token")), "code": after(r.Form.Get("code")), "PKCE verifier": r.Form.Get("code_verifier"),
				"signature of an assertion": r.Form.Get("client_assertion")[strings.LastIndexByte(r.Form.Get("client_assertion"), '.')+1:]} {
				if text != "" {
					w.keep("a "+name+" of "+g.way.name, text)
				}
			}
		}
		if g.stumbled.Load() == 0 || g.refused.Load() == 0 {
			w.t.Errorf("%s: its authorization server stumbled %d times and refused %d times", g.way.name, g.stumbled.Load(), g.refused.Load())
		}
	}
}
