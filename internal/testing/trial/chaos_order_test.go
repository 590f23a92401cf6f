//go:build chaos

package trial

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// This row is about the order of each client's deliveries (docs/design/delivery.md).

// violations compares, by Postgres' clock, the start of each delivery's first attempt with the deliveries before it. An
// earlier feedback of the same client must have ended by then. If its first attempt is 60 s old, the violation is
// excused. The feedback of a revocation must have ended in any case. An attempt that was put off, because the agent's
// breaker was open, leaves no row, although the 60 s begin with it.
const violations = `
WITH first AS (SELECT delivery_id AS id, min(started_at) AS at FROM herald.attempts GROUP BY 1),
     d AS (SELECT d.id, d.kind, d.chain_id || ':' || d.agent_id AS agent, d.order_key, d.order_seq, d.finished_at, f.at FROM herald.deliveries d JOIN first f USING (id))
SELECT l.id, l.kind = 'FeedbackRevoked' AND e.order_seq = l.order_seq AS revocation,
       e.at <= l.at - interval '60 s' AS excused, e.order_seq::text, l.agent
  FROM d l JOIN d e ON e.order_key = l.order_key AND e.kind = 'NewFeedback' AND e.id <> l.id AND e.finished_at > l.at
   AND (e.order_seq < l.order_seq OR l.kind = 'FeedbackRevoked' AND e.order_seq = l.order_seq)`

// violation is a row of violations.
type violation struct {
	ID                    uuid.UUID
	Revocation, IsExcused bool
	Earlier, Agent        string
}

// TestChaosOrder delivers 20,000 ordered events of 50 agents with 20 clients each, among them 1,000 revocations. One of
// twelve is refused (503) twice, one of 200 for more than a minute. There are two workers, ten times kill -9, and Redis
// loses everything once.
//
// No agent sees a later feedback of a client before an earlier one, unless the first attempt of the earlier one is 60 s
// old, or the agent's breaker was open. The log reports each such case. Every revocation comes after its feedback. No two calls of a client overlap,
// except with a call of a killed worker.
func TestChaosOrder(t *testing.T) {
	const (
		agents, clients, feedback = 50, 20, 19
		kills                     = 10
	)
	r := newRowOf(t, "order", 20*time.Minute, func() (*Agents, error) { return StartAgents(agents) })
	r.agents.OfferAll()
	r.agents.BehaveAll(func(c Call) Act {
		refused := 0
		switch n := int(c.Delivery[15])<<8 | int(c.Delivery[14]); {
		case n%200 == 7:
			refused = 5
		case n%12 == 5:
			refused = 2
		}
		if c.Number <= refused {
			return Act{How: Refuse, Status: http.StatusServiceUnavailable}
		}
		return Act{Take: 3 * time.Millisecond}
	})
	var jobs strings.Builder
	for index := range feedback + 1 {
		for client := range agents * clients {
			jobs.WriteString(orderLine(r.agents, client%agents, client/agents, index, feedback))
		}
	}
	accepted, _, err := r.Enqueue(r.within(3*time.Minute), strings.NewReader(jobs.String()))
	r.must(err)
	r.remember(accepted)
	r.hire(2, 16, "HERALD_RETRY_SCHEDULE=1s,2s,4s,30s,31s,5s,5s,5s,5s,5s", "HERALD_ENDPOINT_RATE=1000")

	var moments []Moment
	ticker := time.NewTicker(6 * time.Second)
	defer ticker.Stop()
	for i := range kills {
		<-ticker.C
		w := r.workers[i%len(r.workers)]
		moments = append(moments, r.kill(w))
		if i == kills/2 {
			r.must(r.Redis.Client().FlushAll(r.ctx).Err())
		}
		r.must(w.Start())
	}
	r.allReady()
	v := r.settle(15 * time.Minute)

	excused, unexplained, broken := map[uuid.UUID]string{}, 0, 0
	found, err := Query(r.ctx, r.Site, pgx.RowToStructByPos[violation], violations)
	r.must(err)
	explained, putOff, err := r.explainedExceptions()
	r.must(err)
	for _, v := range found {
		if (v.IsExcused || putOff[v.Agent] && explained[v.ID] != "") && !v.Revocation {
			excused[v.ID] = v.Earlier
			continue
		}
		if broken++; broken <= 5 {
			t.Errorf("delivery %s went before %s of its client (revocation: %v)", v.ID, v.Earlier, v.Revocation)
		}
	}
	// If a worker is killed between recording an outcome and logging it, the log line is missing.
	cut := map[uuid.UUID]bool{}
	for _, c := range v.calls {
		cut[c.Delivery] = cut[c.Delivery] || touched(moments, c, time.Second)
	}
	for id, earlier := range excused {
		if explained[id] == "" && !cut[id] {
			if unexplained++; unexplained <= 5 {
				t.Errorf("the log does not say that %s went ahead of %s", id, earlier)
			}
		}
	}
	overlaps := overlapsOfClients(v.calls, moments, r.listClients())
	r.figures.Add("out_of_order", broken).Add("had_its_time", len(excused)).Add("unexplained", unexplained).Add("overlaps", overlaps).Add("kills", kills)
	r.print()
	if len(excused) == 0 {
		t.Error("no delivery had its time: the row shows nothing about the exception")
	}
	if overlaps > 0 {
		t.Errorf("%d calls of one client overlapped though nobody was killed", overlaps)
	}
}

// orderLine returns feedback number index+1 of an agent's client. The last one is a revocation of the feedback before
// it.
func orderLine(a *Agents, agent, client, index, feedback int) string {
	kind, rest := `"NewFeedback"`, `"value":"95","valueDecimals":0,`
	number := index + 1
	if index == feedback {
		kind, rest, number = `"FeedbackRevoked"`, `"reason":"client",`, feedback
	}
	return fmt.Sprintf(`{"type":%s,"chainId":8453,"agentId":"%d","clientAddress":"0x%040x","feedbackIndex":%d,%s`+
		`"action":%s}`+"\n", kind, agent+1, client+1, number, rest, a.action(agent))
}

// explainedExceptions returns the attempts that the workers' logs report as ahead of an earlier delivery, and the agents
// whose deliveries they report as put off because a breaker was open.
func (r *row) explainedExceptions() (out map[uuid.UUID]string, putOff map[string]bool, err error) {
	r.Site.mu.Lock()
	processes := slices.Clone(r.Site.processes)
	r.Site.mu.Unlock()
	out, putOff = map[uuid.UUID]string{}, map[string]bool{}
	for _, p := range processes {
		for l, err := range p.Lines() {
			if err != nil {
				return nil, nil, err
			}
			if l.Reasons["breaker_open"] > 0 {
				putOff[l.Agent] = true
			}
			if id, err := uuid.Parse(l.Delivery); err == nil && l.AheadOf != "" {
				out[id] = l.AheadOf
			}
		}
	}
	return out, putOff, nil
}

// listClients returns the agent and client of each delivery.
func (r *row) listClients() map[uuid.UUID]string {
	r.Helper()
	return r.textByID(`SELECT id, order_key FROM herald.deliveries`)
}

// overlapsOfClients counts calls that began during another call of the same client. Calls that a kill interrupted are
// excused.
func overlapsOfClients(calls Calls, kills []Moment, clients map[uuid.UUID]string) (n int) {
	last := map[string]Call{}
	for _, c := range calls {
		client := clients[c.Delivery]
		before, ok := last[client]
		if ok && (before.Ended.IsZero() || c.Begun.Before(before.Ended)) && !touched(kills, before, 0) {
			n++
		}
		last[client] = c
	}
	return n
}
