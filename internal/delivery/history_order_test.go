package delivery

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// orderHold is how long an earlier delivery of a client holds later ones from its first attempt on (DESIGN §5).
const orderHold = 60 * time.Second

// ordered is a delivery among those of its agent and client.
type ordered struct {
	key   string
	seq   uint64
	batch int // of the intake: what came in a later one may come too late to go first
}

// judgeOrder looks at a call beside the other deliveries of its client: none is under way, and none goes first. What an
// operator had delivered again holds nobody; what was held may wait for long; and whoever is accepted after this one
// was may come too late to go first.
func (h *history) judgeOrder(call *made, slept bool) {
	id := call.claim.id
	mine, ok := h.clients[id]
	if !ok || slept {
		return
	}
	for other, c := range h.clients {
		if other == id || c.key != mine.key {
			continue
		}
		for _, m := range h.made[other] {
			over := !m.to.IsZero() || h.tempo.slack > 0 && m.until.Before(call.from)
			if !over && !m.p.diedBy(call.from) && !m.p.sleptAt(m.claim.lease) && !m.p.isCut() && !h.wasLate(other) {
				h.breaks(id, "two calls of one client at once: feedback %d of process %d since %s, and %d",
					c.seq, m.p.name, m.from.Sub(h.began), mine.seq)
			}
		}
		if c.seq > mine.seq || c.batch > mine.batch {
			continue
		}
		row, err := h.ground.Delivery(context.Background(), other)
		if err != nil || row.Status.Final() || row.Status == store.Held || h.excused[other] || !h.released[other].IsZero() {
			continue
		}
		if len(row.History) > 0 && !row.History[0].StartedAt.Add(orderHold).After(call.claim.started) {
			h.counts["went ahead of one that had its time"]++
			continue
		}
		h.breaks(id, "feedback %d is called before %d, which is %s %s", mine.seq, c.seq, row.Status, row.Reason)
	}
}

// wasLate: a late success ended it while an older claim's call goes on.
func (h *history) wasLate(id uuid.UUID) bool { _, ok := h.resolved[id]; return ok }

// excusesOthers tells whether an outcome lets others go ahead by time alone: a hold, a wait for the chain (10 minutes), and one that is
// recorded by a later attempt, which may take the first one back long after it began.
func excusesOthers(c *store.Claim, attempt int, o store.Outcome) bool {
	return o.Status == store.Held || o.Reason == reason.ChainUnavailable || o.Reason == reason.NotConfirmed || attempt != c.Attempt
}

// knowOrder remembers of which clients a batch's deliveries are.
func (h *history) knowOrder(batch int, rows []store.Intake) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, in := range rows {
		h.clients[in.Job.ID()] = ordered{in.Job.OrderKey(), in.Job.OrderSeq(), batch}
	}
}
