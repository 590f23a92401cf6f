package delivery

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// orderHold is how long an earlier delivery of a client blocks later ones, from its first attempt on
// (docs/design/delivery.md).
const orderHold = 60 * time.Second

// ordered is the position of a delivery among those of its agent and client.
type ordered struct {
	key   string
	seq   uint64
	batch int // of the intake; a delivery of a later batch may arrive too late to go first
}

// judgeOrder checks a call against the other deliveries of its client: no other call may be running, and no earlier
// delivery may be due first. Replayed deliveries block no others. Held ones block them for a limited time. A delivery
// that was accepted later may arrive too late to go first.
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

// wasLate reports whether a late success ended the delivery while an older claim's call was running.
func (h *history) wasLate(id uuid.UUID) bool { _, ok := h.resolved[id]; return ok }

// excusesOthers reports whether an outcome lets later deliveries overtake after a time. These are a hold, a wait for
// the chain (10 minutes), and an outcome that a later attempt records, which may undo the first attempt long after it
// began.
func excusesOthers(c *store.Claim, attempt int, o store.Outcome) bool {
	return o.Status == store.Held || o.Reason == reason.ChainUnavailable || o.Reason == reason.NotConfirmed || attempt != c.Attempt
}

// knowOrder notes the ordering keys of a batch's deliveries.
func (h *history) knowOrder(batch int, rows []store.Intake) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, in := range rows {
		h.clients[in.Job.ID()] = ordered{in.Job.OrderKey(), in.Job.OrderSeq(), batch}
	}
}
