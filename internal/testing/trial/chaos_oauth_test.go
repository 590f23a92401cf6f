//go:build chaos

package trial

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/oauthtest"
)

// TestChaosRefreshToken: a refresh token is replaced while Postgres is away, and the worker with the new one is killed.
// The next worker finds the new one in Redis. The authorization server revokes the whole grant if a refresh token is
// used twice.
func TestChaosRefreshToken(t *testing.T) {
	for name, fault := range map[string]func(*Site) (begin, end step){
		"frozen":  func(s *Site) (begin, end step) { return s.Postgres.Freeze, s.Postgres.Thaw },
		"stopped": func(s *Site) (begin, end step) { return s.Postgres.Stop, s.Postgres.Start },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRow(t, "refresh token replaced, Postgres "+name+", worker killed", 0)
			server := oauthtest.New(t, oauthtest.Options{RotateRefresh: true})
			r.logIn(server)
			begin, end := fault(r.Site)
			var failed error
			goneAway := sync.OnceFunc(func() { failed = begin(r.ctx) })
			server.Answer(func(_ http.ResponseWriter, req *http.Request) bool {
				if !server.ToAgent(req) && req.Method == http.MethodPost {
					goneAway() // before the server answers with the next refresh token
				}
				return false
			})
			r.hire(1, 4)
			r.enqueueFor(server, 1)
			r.must(Until(r.within(time.Minute), pollQuick, "a refresh token in Redis", func() (bool, error) {
				keys, err := r.Redis.Client().Keys(r.ctx, "herald:renewal:*").Result()
				return len(keys) == 1, err
			}))
			r.must(failed)
			r.must(r.workers[0].Kill())
			r.must(end(r.ctx))
			r.must(r.workers[0].Start())
			r.allReady()
			r.must(r.AwaitFinal(r.within(3 * time.Minute)))
			server.Revoke()
			r.enqueueFor(server, 2)
			r.must(r.AwaitFinal(r.within(time.Minute)))

			rows, err := r.Rows(r.ctx)
			r.must(err)
			refused := 0
			for _, q := range server.TokenRequests() {
				if q.Status != http.StatusOK {
					refused++
				}
			}
			by := CountStatus(rows)
			r.figures.Add("deliveries", len(rows)).Add("delivered", by["delivered"]).Add("token_requests", len(server.TokenRequests())).Add("refused", refused)
			r.print()
			if by["delivered"] != 2 || refused > 0 {
				t.Errorf("%v; %d of %d token requests were refused", by, refused, len(server.TokenRequests()))
			}
		})
	}
}

// logIn stores the credential of a login for agent 8453:1.
func (r *row) logIn(server *oauthtest.Server) {
	r.Helper()
	keys, err := secret.Parse(secret.New(r.keyset))
	r.must(err)
	st, err := store.Open(postgres.Config{URL: secret.New(r.address)})
	r.must(err)
	defer st.Close()
	server.Register("herald", "")
	plain, err := oauth.Credential{Grant: oauth.GrantRefreshToken, ClientID: "herald", Method: oauth.MethodNone, Resource: server.AgentURL,
		RefreshToken: secret.New(server.RefreshToken("herald", ""))}.Marshal()
	r.must(err)
	known, ok := erc8004.KnownDeployment(8453)
	if !ok {
		r.must(errors.New("nothing is known of chain 8453"))
	}
	token := records.Token{Agent: erc8004.Agent{ChainID: 8453, Registry: strings.ToLower(known.Identity.Hex()), ID: "1"}, Origin: netguard.CredentialOrigin(strings.TrimSuffix(server.AgentURL, "/mcp")), Path: "/mcp",
		Scheme: records.SchemeAuthorizationCode, Header: "Authorization", Issuer: server.Issuer}
	token.Ciphertext, err = keys.Seal(plain, token.Binding())
	r.must(err)
	_, _, err = records.New(st).SetToken(r.ctx, token)
	r.must(err)
}

// enqueueFor enqueues a job for agent 8453:1. The job must be accepted.
func (r *row) enqueueFor(server *oauthtest.Server, serial int) {
	r.Helper()
	line := fmt.Sprintf(`{"type":"NewFeedback","chainId":8453,"agentId":"1","clientAddress":"0x%040x","feedbackIndex":1,"value":"95","valueDecimals":0,`+
		`"action":{"resolveEndpoint":false,"includeFileContent":false,"endpoint":{"transport":"http","url":"%s"}}}`+"\n", serial, server.AgentURL)
	accepted, _, err := r.Enqueue(r.within(time.Minute), strings.NewReader(line))
	r.must(err)
	if len(accepted) != 1 {
		r.Fatal("the job was not accepted")
	}
}
