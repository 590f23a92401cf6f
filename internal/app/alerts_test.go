package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const alertSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestAlerts checks that HERALD_ALERT_URL receives an alert when an operator disables an agent and when a delivery is
// held. If a worker is killed after a post but before it recorded it, another worker repeats the post with the same id.
// Other alerts are posted once.
func TestAlerts(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	database := heraldtest.Postgres(t, postgres.Migrate)
	hook, err := webhooks.NewWebhook(alertSecret)
	heraldtest.Must(t, err)
	killer, posts := make(chan func(), 1), make(chan string, 10) // "id type deliveries"
	killAtFirstPost := sync.OnceFunc(func() { (<-killer)() })
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var p struct {
			Type string
			Data struct{ Deliveries []string }
		}
		if err = errors.Join(err, hook.Verify(body, req.Header), json.Unmarshal(body, &p)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		killAtFirstPost()
		posts <- fmt.Sprint(req.Header.Get("webhook-id"), " ", p.Type, " ", p.Data.Deliveries)
	}))
	t.Cleanup(receiver.Close)
	env := append(chainEnv(net, net.URL()), "DATABASE_URL="+database, "REDIS_URL="+heraldtest.Redis(t),
		"HERALD_KEYSET="+heraldtest.Keyset(t), "HERALD_CONCURRENCY=4", "HERALD_DB_POOL=8", "HERALD_ALERT_URL="+receiver.URL+"/hook",
		"HERALD_ALERT_SECRET="+alertSecret)
	heraldtest.Exec(t, database, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, enabled, state) VALUES (1, '0xaa', 7, false, 'disabled')`)
	_, kill := startKillable(t, env...)
	killer <- kill
	first := heraldtest.Receive(t, "the post at which the worker is killed", posts)
	// The lease of the killed worker expires.
	heraldtest.Exec(t, database, `UPDATE herald.alerts SET next_attempt_at = now() WHERE sent_at IS NULL`)

	other := run(t, false, env...)
	w := other.up()
	heraldtest.Equal(t, "the post of the other worker", heraldtest.Receive(t, "the post of the other worker", posts), first)
	// A delivery is held: both the hold and its cause are posted.
	line := feedback(t, net, "https://a.example")
	var j struct{ AgentID, IdentityRegistry string }
	heraldtest.Must(t, json.Unmarshal(line, &j))
	agent := erc8004.Agent{ChainID: net.ChainID(), Registry: strings.ToLower(j.IdentityRegistry), ID: j.AgentID}
	_, _, err = records.New(w.Store).EnableAgent(t.Context(), agent, false)
	heraldtest.Must(t, err)
	id := accept(t, w, line)
	var told []string
	for range 2 {
		_, what, _ := strings.Cut(heraldtest.Receive(t, "the hold and its cause", posts), " ")
		told = append(told, what)
	}
	slices.Sort(told)
	heraldtest.Equal(t, "the posts", told, []string{"agent.disabled []", "deliveries.held [" + id.String() + "]"})
	heraldtest.Must(t, other.stop())
	heraldtest.Equal(t, "more posts", len(posts), 0)
	heraldtest.Lacks(t, "the log", other.log.String(), alertSecret, "/hook")
}
