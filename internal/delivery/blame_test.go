package delivery

import (
	"fmt"
	"math/big"
	"net/http"
	"testing"

	"github.com/agentherald/herald/internal/admission"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestFailuresThatBlameNoAgent: an agent does not count as failed because of a file that a client named, because it
// declined a client's content, or because of an endpoint, tool or timeout that a job named.
func TestFailuresThatBlameNoAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	healthy := newAgent(t)
	failing, silent := newAgent(t, breaksWith(http.StatusInternalServerError)), newAgent(t, hangs())
	picky := newAgent(t, answers(saysNo))
	strict := newAgent(t, func(a *agent) { a.schema = `{"type":"object","properties":{"tag1":{"maxLength":3}}}` })
	const failedSlots = 100
	k := w.newWorker(admitBy(t, admission.Config{Slots: 4 * failedSlots}))
	for i := range failedSlots { // use all slots of agents that failed
		agent := erc8004.Agent{ID: fmt.Sprint(i)}
		k.executor.Admission.NoteOutcome(agent, false)
		pass := k.executor.Admission.Begin(agent.ID)
		heraldtest.Must(t, pass.AdmitAgent(t.Context(), agent, false))
		t.Cleanup(func() { pass.Leave() })
	}
	for name, c := range map[string]struct {
		at     *agent
		file   string
		action map[string]any
		want   bool
	}{
		"its own failure":               {failing, "", nil, true},
		"its own silence":               {silent, "", nil, true},
		"a file that is no":             {healthy, "https://10.0.0.1/x", nil, false},
		"what it declines":              {picky, "", nil, false},
		"what its schema does not take": {strict, "", nil, false},
		"the job's endpoint":            {healthy, "", own(failing.URL, nil), false},
		"the job's tool":                {healthy, "", map[string]any{"toolName": "agent.receiveOther"}, false},
		"the job's impatience":          {silent, "", map[string]any{"timeoutMs": 3000}, false},
	} {
		w.runParallel(t, name, func(t *testing.T, w *world) {
			j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(c.at.URL)), URI: c.file, Tag1: "a long tag"})
			if c.action != nil {
				j = with(j, c.action)
			}
			id := w.accept(j)
			note, err := k.deliver(t.Context(), id, 1)
			if err == nil && note == "" {
				t.Fatal("it was delivered")
			}
			agent, _ := new(big.Int).SetString(w.row(id).AgentID, 10)
			pass := k.executor.Admission.Begin(name)
			defer pass.Leave()
			refused := pass.AdmitAgent(t.Context(), w.agentOf(agent), false)
			heraldtest.Equal(t, fmt.Sprintf("it counts as failed after %q, %v", note, err), refused != nil, c.want)
		})
	}
}
