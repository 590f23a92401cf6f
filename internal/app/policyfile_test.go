package app

import (
	"encoding/json"
	"fmt"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
)

// TestPolicyFile checks that the policy file filters and holds deliveries, and that a changed file, or a changed file of
// clients, takes effect without a restart, also its order. The entry of the servers file overrides the policy. A worker does not start
// with a broken file.
func TestPolicyFile(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	a := openAgent(t)
	dir := t.TempDir()
	path, clients, listed := filepath.Join(dir, "policy.json"), filepath.Join(dir, "clients.txt"), filepath.Join(dir, "servers.json")
	first, second, third := feedback(t, net, a.URL), feedback(t, net, a.URL), feedback(t, net, a.URL)
	write(t, clients, net.Account(1).Address.String())
	write(t, path, `{"filters": [{"action": "skip", "when": {"client": {"file": "clients.txt"}}}]}`)
	agent := agentOf(t, third)
	write(t, listed, fmt.Sprintf(`{"servers": {"%d:%s": {"enabled": true}}}`, net.ChainID(), agent))
	env := workerEnv(t, net, "HERALD_POLICY_FILE="+path, "HERALD_SERVERS_FILE="+listed)
	r := run(t, false, env...)
	w := r.up()
	ends := func(line []byte, status outcome.Status, reason outcome.Reason) ledger.Delivery {
		t.Helper()
		return until(t, w.Store, accept(t, w, line),
			func(d ledger.Delivery) bool { return d.Status == status && d.Reason == reason })
	}
	ends(first, outcome.Skipped, "filtered")

	changes := func(n int) { // waits until the worker has seen n changes
		t.Helper()
		heraldtest.AwaitState(t, func() bool { return strings.Count(r.log.String(), "the policy file changed") == n },
			func() string { return r.log.String() })
	}
	write(t, clients, net.Account(2).Address.String()+"\n"+net.Account(3).Address.String())
	changes(1)
	write(t, path, `{"enabled": false}`)
	changes(2)
	held := ends(second, outcome.Held, "agent_disabled")
	ends(third, outcome.Delivered, "")

	write(t, path, `{"enabled": true, "onUnknown": "resend"}`)
	delivered(t, w.Store, held.ID)
	write(t, path, `{"pauseUntil": "2999-12-31T18:00:00Z", "order": "off"}`)
	changes(4)
	for range 2 { // with the order, the second would wait for the first (behind_earlier)
		ends(rate(t, net, agent), outcome.Waiting, "throttled")
	}
	heraldtest.Equal(t, "calls", a.count(), 2)
	heraldtest.Must(t, r.stop())
	heraldtest.Equal(t, "logged changes", strings.Count(r.log.String(), "the policy file changed"), 4)

	write(t, path, `{"filters": [{"action": "skip", "when": {"tag3": "x"}}]}`)
	heraldtest.Fails(t, "the start", run(t, false, env...).wait(), "HERALD_POLICY_FILE: "+path+": filters[0].when.tag3")
}

// TestNoiseIsFilteredAtAcceptance checks that of the past events of a chain, of which 95 % are noise, the agent is called
// only for the rest. The others end when the follower reads them: they have no task, and no worker checks them. A
// revocation of such a feedback ends without a call.
func TestNoiseIsFilteredAtAcceptance(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	a := openAgent(t)
	var event job.Job
	heraldtest.Must(t, json.Unmarshal(feedback(t, net, a.URL), &event)) // one event that is no noise
	ctx := heraldtest.Within(t, time.Minute)
	const noise = 38
	var last uint64
	for range noise {
		var err error
		last, _, err = net.GiveFeedback(ctx, net.Account(2), devnet.Feedback{AgentID: event.AgentID, Value: big.NewInt(1), Tag1: "miner-vouch"})
		heraldtest.Must(t, err)
	}
	_, _, err := net.GiveFeedback(ctx, net.Account(3), devnet.Feedback{AgentID: event.AgentID, Value: big.NewInt(1), Tag1: "uptime"})
	heraldtest.Must(t, err)
	_, err = net.RevokeFeedback(ctx, net.Account(2), event.AgentID, last)
	heraldtest.Must(t, err)

	path := filepath.Join(t.TempDir(), "policy.json")
	write(t, path, `{"filters": [{"action": "skip", "when": {"tag1": "miner-*"}}]}`)
	database := heraldtest.Postgres(t, postgres.Migrate)
	st := storetest.Open(t, database, 2)
	for _, contract := range net.Deployment().List() { // so that the follower reads the past events
		_, err := st.OpenCursor(ctx, cursor.Key{ChainID: net.ChainID(), Contracts: contract}, 0, nil)
		heraldtest.Must(t, err)
	}
	r := run(t, false, append(chainEnv(net, net.URL()), "DATABASE_URL="+database, "REDIS_URL="+heraldtest.Redis(t),
		"HERALD_KEYSET="+heraldtest.Keyset(t), "HERALD_POLICY_FILE="+path, fmt.Sprintf("HERALD_WATCH=%d", net.ChainID()))...)
	r.up()
	count := func(reason, status string) (n int) {
		rows, err := records.New(st).Deliveries(ctx, records.Filter{Statuses: []outcome.Status{outcome.Status(status)}, Reason: outcome.Reason(reason), Limit: 100})
		heraldtest.Must(t, err)
		for _, row := range rows {
			if d, err := st.Delivery(ctx, row.ID); err != nil || reason == "filtered" && (d.Dispatch > 0 || !strings.HasPrefix(d.Error, "rule 1 of the default policy")) ||
				status == "skipped" && d.Attempts > 0 {
				t.Fatalf("%+v, %v", d, err)
			}
		}
		return len(rows)
	}
	got := ""
	heraldtest.AwaitState(t, func() bool {
		got = fmt.Sprint(count("filtered", "skipped"), count("", "delivered"), count("never_delivered", "skipped"))
		return got == fmt.Sprint(noise, 2, 1)
	}, func() string { return got })
	heraldtest.Contains(t, "/metrics", r.get("", "/metrics"),
		fmt.Sprintf(`herald_filtered_total{level="default",rule="1"} %d`, noise))
	heraldtest.Must(t, r.stop())
	heraldtest.Equal(t, "calls", a.count(), 2)
}
