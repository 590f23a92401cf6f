package app

import (
	"strings"
	"sync"
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestBindingPolicy checks the effect of HERALD_BINDING on two agents whose registrations name the same endpoint
// without the endpoint's confirmation, while a call to the first one is in flight.
func TestBindingPolicy(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	for _, c := range []struct {
		env    []string
		first  bool // the first agent is called
		status outcome.Status
		reason outcome.Reason
	}{
		{nil, true, outcome.Waiting, "agent_busy"},
		{[]string{"HERALD_BINDING=off"}, true, outcome.Running, ""},
		{[]string{"HERALD_BINDING=require"}, false, outcome.Rejected, "endpoint_unverified"},
	} {
		a := newAgent(t)
		answer := sync.OnceFunc(func() { close(a.hold) })
		t.Cleanup(answer)
		r := run(t, false, workerEnv(t, net, c.env...)...)
		w := r.up()
		accept(t, w, feedback(t, net, a.URL))
		if c.first {
			heraldtest.Receive(t, "the call", a.begun)
		}
		second := accept(t, w, feedback(t, net, a.URL))
		t.Log(c.env)
		d := until(t, w.Store, second, func(d ledger.Delivery) bool {
			return d.Status == c.status && d.Reason == c.reason && (c.status != outcome.Running || len(a.begun) > 0)
		})
		if c.status == outcome.Rejected && !strings.Contains(d.Error, a.URL+"/.well-known/agent-registration.json") {
			t.Errorf("its author is told %q", d.Error)
		}
		answer()
		if c.status == outcome.Waiting {
			delivered(t, w.Store, second)
		}
		if err := r.stop(); err != nil {
			t.Errorf("%v: %v", c.env, err)
		}
	}
}
