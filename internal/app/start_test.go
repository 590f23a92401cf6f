package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/app/backend"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// TestStartsWithoutDeadChains checks a start with three unusable chains: the first refuses connections, the second is
// silent, and the third has the wrong chain id. The worker starts at once, commands find it, and /readyz returns 200
// and names the chains, as the overview does. Feedback of the fourth chain is delivered. Feedback of the others waits,
// and no agent is called for it.
func TestStartsWithoutDeadChains(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	const refuses, silent, other = 601, 602, 603
	env := workerEnv(t, net, "REDIS_URL=", "HERALD_QUEUE=embedded", "HERALD_DATA="+dataFolder(t),
		"HERALD_RETRY_SCHEDULE=1h")
	for id, url := range map[int]string{refuses: "http://127.0.0.1:1", silent: "http://" + heraldtest.Silent(t), other: net.URL()} {
		d := net.Deployment()
		env = append(env, fmt.Sprintf("RPC_URL_%d=%s", id, url), fmt.Sprintf("IDENTITY_REGISTRY_%d=%s", id, d.Identity),
			fmt.Sprintf("REPUTATION_REGISTRY_%d=%s", id, d.Reputation))
	}
	r := runWith(t, Options{ChainTimeout: 3 * time.Second}, env...)
	w := r.up()
	if b, err := backend.Attach(t.Context(), load(t, env...), 60*time.Second, slog.New(slog.DiscardHandler)); err != nil || !b.EmbeddedRedis {
		t.Errorf("a command does not find it: %+v, %v", b, err)
	}
	healthy, theirs := openAgent(t), openAgent(t)
	line := feedback(t, net, theirs.URL)
	deliveries := map[int]uuid.UUID{}
	for _, id := range []int{refuses, silent, other} {
		deliveries[id] = accept(t, w, ofChain(t, line, id))
	}
	delivered(t, w.Store, accept(t, w, feedback(t, net, healthy.URL)))
	degraded := r.untilReadyWithout("chain 601", "chain 602", "chain 603")
	heraldtest.Contains(t, "chain 603", degraded["chain 603"], "603", fmt.Sprint(net.ChainID()))
	page := r.get("", "/")
	heraldtest.Contains(t, "the overview", page, "chain 601 cannot be used: ", "chain 602 cannot be used: ",
		"chain 603 cannot be used: ")
	heraldtest.Lacks(t, "the overview", page, "All is well")
	for id, delivery := range deliveries {
		d := until(t, w.Store, delivery, func(d ledger.Delivery) bool { return d.Status == outcome.Waiting })
		if d.Reason != "chain_unavailable" {
			t.Errorf("chain %d: %s %s: %s", id, d.Status, d.Reason, d.Error)
		}
	}
	heraldtest.Equal(t, "calls for chains that cannot be used", theirs.count(), 0)
	if n := strings.Count(r.log.String(), "cannot be used: its deliveries wait"); n != 3 {
		t.Errorf("told %d times:\n%s", n, r.log)
	}
}

// ofChain returns the job with another chain id.
func ofChain(t testing.TB, line []byte, id int) []byte {
	t.Helper()
	var j map[string]any
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	heraldtest.Must(t, dec.Decode(&j))
	j["chainId"] = id
	b, err := json.Marshal(j)
	heraldtest.Must(t, err)
	return b
}

// TestAcceptsBeforeRedis checks that while Redis is unavailable at the start, commands find the embedded database by
// run.json. Jobs that they accept are delivered once Redis is available.
func TestAcceptsBeforeRedis(t *testing.T) {
	t.Parallel()
	heraldtest.EmptyPostgres(t)
	net := devnettest.Start(t, devnet.Config{})
	redis, redisURL := heraldtest.RedisGate(t, heraldtest.Redis(t))
	env := append(chainEnv(net, net.URL()), "HERALD_DATA="+dataFolder(t), "REDIS_URL="+redisURL)
	r := run(t, false, env...)
	r.untilWaitingFor("redis")

	cfg, quiet := load(t, env...), slog.New(slog.DiscardHandler)
	b, err := backend.Attach(t.Context(), cfg, 60*time.Second, quiet) // Postgres is still starting
	if err != nil {
		t.Fatalf("%v; the worker said:\n%s", err, r.log)
	}
	st, err := backend.OpenStore(t.Context(), cfg, b, 60*time.Second, false, quiet)
	heraldtest.Must(t, err)
	defer st.Close()
	keys, err := b.Keyset(cfg, quiet)
	heraldtest.Must(t, err)
	intake, err := intake.New(intake.Config{Ledger: st, Sealer: keys, Limits: backend.JobLimits(cfg), Logger: quiet})
	heraldtest.Must(t, err)
	a := openAgent(t)
	id := accept(t, &Worker{Store: st, Intake: intake}, feedback(t, net, a.URL))
	redis.Open()
	r.up()
	delivered(t, st, id)
}
