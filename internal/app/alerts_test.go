package app

import (
	"context"
	"encoding/json"
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
	"github.com/jackc/pgx/v5"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const alertSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// alertReceiver records the alerts that workers post. The first post can kill the worker before it is answered.
type alertReceiver struct {
	*httptest.Server
	mu    sync.Mutex
	first func()
	posts []string // "id type deliveries"
}

func newAlertReceiver(t *testing.T, first func()) *alertReceiver {
	t.Helper()
	hook, err := webhooks.NewWebhook(alertSecret)
	heraldtest.Must(t, err)
	r := &alertReceiver{first: first}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err == nil {
			err = hook.Verify(body, req.Header)
		}
		var p struct {
			Type string
			Data struct{ Deliveries []string }
		}
		if jsonErr := json.Unmarshal(body, &p); err != nil || jsonErr != nil {
			t.Errorf("%s: %v, %v", body, err, jsonErr)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.posts = append(r.posts, fmt.Sprint(req.Header.Get("webhook-id"), " ", p.Type, " ", p.Data.Deliveries))
		if len(r.posts) == 1 && r.first != nil {
			r.first()
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *alertReceiver) received() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.posts)
}

// TestAlerts checks that HERALD_ALERT_URL receives an alert when an operator disables an agent and when a delivery is
// held. If a worker is killed after a post but before it recorded it, another worker repeats the post with the same id.
// Other alerts are posted once.
func TestAlerts(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	database := heraldtest.Postgres(t, postgres.Migrate)
	killer, killed := make(chan func(), 1), make(chan bool, 1)
	r := newAlertReceiver(t, func() { (<-killer)(); killed <- true })
	env := append(chainEnv(net, net.URL()), "DATABASE_URL="+database, "REDIS_URL="+heraldtest.Redis(t),
		"HERALD_KEYSET="+heraldtest.Keyset(t), "HERALD_CONCURRENCY=4", "HERALD_DB_POOL=8", "HERALD_ALERT_URL="+r.URL+"/hook",
		"HERALD_ALERT_SECRET="+alertSecret)
	db, err := pgx.Connect(t.Context(), database)
	heraldtest.Must(t, err)
	defer func() { _ = db.Close(context.Background()) }()
	_, err = db.Exec(t.Context(),
		`INSERT INTO herald.agents (chain_id, identity_registry, agent_id, enabled) VALUES (1, '0xaa', 7, false)`)
	heraldtest.Must(t, err)
	_, kill := startKillable(t, env...)
	killer <- kill
	heraldtest.Receive(t, "the post at which the worker is killed", killed)
	// The lease of the killed worker expires.
	_, err = db.Exec(t.Context(), `UPDATE herald.alerts SET next_attempt_at = now() WHERE sent_at IS NULL`)
	heraldtest.Must(t, err)

	other := run(t, false, env...)
	w := other.up()
	heraldtest.AwaitState(t, func() bool { return len(r.received()) == 2 }, func() string { return fmt.Sprint(r.received(), other.log) })
	if got := r.received(); got[0] != got[1] {
		t.Errorf("%q", got)
	}
	// A delivery is held: both the hold and its cause are posted.
	line := feedback(t, net, "https://a.example")
	var j struct{ AgentID, IdentityRegistry string }
	heraldtest.Must(t, json.Unmarshal(line, &j))
	agent := erc8004.Agent{ChainID: net.ChainID(), Registry: strings.ToLower(j.IdentityRegistry), ID: j.AgentID}
	_, _, err = records.New(w.Store).EnableAgent(t.Context(), agent, false)
	heraldtest.Must(t, err)
	id := accept(t, w, line)
	want := []string{"agent.disabled []", "deliveries.held [" + id.String() + "]"}
	told := func() (all []string) {
		for _, p := range r.received()[2:] {
			_, what, _ := strings.Cut(p, " ")
			all = append(all, what)
		}
		slices.Sort(all)
		return all
	}
	heraldtest.AwaitState(t, func() bool { return slices.Equal(told(), want) },
		func() string { return fmt.Sprintf("%q, want %q: %s", told(), want, other.log) })
	heraldtest.Must(t, other.stop())
	heraldtest.Equal(t, "the posts", told(), want)
	heraldtest.Lacks(t, "the log", other.log.String(), alertSecret, "/hook")
}
