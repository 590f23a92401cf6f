package service

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/devnet"
	"github.com/agentherald/herald/internal/devnet/devnettest"
	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/store"
)

// TestPolicyFile checks that the policy file filters and holds deliveries, and that a changed file, or a changed file of
// clients, takes effect without a restart. The entry of the servers file overrides the policy. A worker does not start
// with a broken file.
func TestPolicyFile(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	a := newAgent(t)
	close(a.hold)
	dir := t.TempDir()
	path, clients, listed := filepath.Join(dir, "policy.json"), filepath.Join(dir, "clients.txt"), filepath.Join(dir, "servers.json")
	write := func(path, content string) {
		t.Helper()
		heraldtest.Must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	first, second, third := feedback(t, net, a.URL), feedback(t, net, a.URL), feedback(t, net, a.URL)
	var event struct {
		AgentID json.Number `json:"agentId"`
	}
	heraldtest.Must(t, json.Unmarshal(third, &event))
	write(clients, net.Account(1).Address.String())
	write(path, `{"filters": [{"action": "skip", "when": {"client": {"file": "clients.txt"}}}]}`)
	write(listed, fmt.Sprintf(`{"servers": {"%d:%s": {"enabled": true}}}`, net.ChainID(), event.AgentID))
	env := append(chainEnv(net, net.URL()), "DATABASE_URL="+heraldtest.Postgres(t, store.Migrate), "REDIS_URL="+heraldtest.Redis(t),
		"HERALD_KEYSET="+heraldtest.Keyset(t), "HERALD_POLICY_FILE="+path, "HERALD_SERVERS_FILE="+listed)
	looks := make(chan time.Time)
	r := runWith(t, Options{PolicyTicks: looks}, env...)
	w := r.up()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ends := func(line []byte, status store.Status, reason string) store.Delivery {
		t.Helper()
		id := accept(t, w, line)
		var d store.Delivery
		heraldtest.AwaitState(t, func() bool {
			var err error
			d, err = w.Store.Delivery(ctx, id)
			return err == nil && d.Status == status && string(d.Reason) == reason
		}, func() string { return fmt.Sprintf("%s %s: %s", d.Status, d.Reason, d.Error) })
		return d
	}
	ends(first, store.Skipped, "filtered")

	write(clients, net.Account(2).Address.String()+"\n"+net.Account(3).Address.String())
	looks <- time.Now()
	looks <- time.Now() // the first look has ended
	write(path, `{"enabled": false}`)
	looks <- time.Now()
	looks <- time.Now()
	held := ends(second, store.Held, "agent_disabled")
	ends(third, store.Delivered, "")

	write(path, `{"enabled": true, "onUnknown": "resend"}`)
	looks <- time.Now()
	delivered(t, w.Store, held.ID)
	if a.count() != 2 {
		t.Errorf("%d calls", a.count())
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(r.log.String(), "the policy file changed"); n != 3 {
		t.Errorf("it logs %d changes:\n%s", n, r.log)
	}

	write(path, `{"filters": [{"action": "skip", "when": {"tag3": "x"}}]}`)
	if err := Run(t.Context(), load(t, append(env, "HERALD_LISTEN="+heraldtest.Address(t))...), Options{Logger: slog.New(slog.DiscardHandler)}); err == nil ||
		!strings.Contains(err.Error(), "HERALD_POLICY_FILE: "+path+": filters[0].when.tag3") {
		t.Errorf("%v", err)
	}
}
