package app

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
)

// silentAgent starts an agent with its own IP address. It answers no call until answer is called.
func silentAgent(t testing.TB, address string) (a *agent, answer func()) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address+":0")
	if err != nil {
		t.Skipf("%s is not this machine's: %v", address, err)
	}
	a = newAgent(t, l)
	answer = sync.OnceFunc(func() { close(a.hold) })
	t.Cleanup(answer)
	return a, answer
}

// TestSilentOrigins checks that silent origins without a previous success occupy at most half of a worker's slots, so
// that an agent that answered before still gets its deliveries.
func TestSilentOrigins(t *testing.T) {
	t.Parallel()
	const slots = 4
	net := devnettest.Start(t, devnet.Config{})
	r := run(t, false, workerEnv(t, net, "HERALD_VERIFY_EVENT=off", fmt.Sprintf("HERALD_CONCURRENCY=%d", slots))...)
	healthy := openAgent(t)
	w := r.up()
	line := feedback(t, net, healthy.URL)
	delivered(t, w.Store, accept(t, w, line))

	var silent []uuid.UUID
	var answers []func()
	for i := range slots {
		a, answer := silentAgent(t, fmt.Sprintf("127.0.0.%d", 11+i))
		silent, answers = append(silent, accept(t, w, feedback(t, net, a.URL))), append(answers, answer)
	}
	ctx := heraldtest.Within(t, time.Minute)
	var seen []string
	heraldtest.AwaitState(t, func() bool {
		seen = nil
		for _, id := range silent {
			d, err := w.Store.Delivery(ctx, id)
			if err != nil {
				return false
			}
			seen = append(seen, string(d.Status)+" "+string(d.Reason))
		}
		slices.Sort(seen)
		return slices.Equal(seen, []string{"running ", "running ", "waiting agent_busy", "waiting agent_busy"})
	}, func() string { return fmt.Sprintf("the deliveries to %d silent agents are %q", slots, seen) })

	var again map[string]any
	heraldtest.Must(t, json.Unmarshal(line, &again))
	again["feedbackIndex"] = 2
	second, err := json.Marshal(again)
	heraldtest.Must(t, err)
	delivered(t, w.Store, accept(t, w, second))
	for _, answer := range answers {
		answer()
	}
	for _, id := range silent { // postponed deliveries are not lost
		delivered(t, w.Store, id)
	}
	heraldtest.Must(t, r.stop())
}
