package delivery

import (
	"context"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// orderDelay is how long an earlier delivery of a client delays later ones, from the first claim on that found it
// confirmed (docs/design/ledger.md).
const orderDelay = 60 * time.Second

// ordered is the position of a delivery among those of its agent and client.
type ordered struct {
	key   string
	seq   uint64
	batch int // of the intake; a delivery of a later batch may arrive too late to go first
}

// judgeOrder checks a call against the other deliveries of its client: no other call may be running, and no earlier
// delivery may be due first. A replayed delivery is an ordering key of its own. Held ones delay no others. A delivery
// that was accepted later may arrive too late to go first.
func (h *history) judgeOrder(call *made, slept bool) {
	id := call.claim.id
	mine, ok := h.clients[id]
	if !ok || slept || call.claim.replayed {
		return
	}
	for other, c := range h.clients {
		if other == id || c.key != mine.key {
			continue
		}
		if slices.ContainsFunc(call.with, func(m *made) bool { return m.claim.id == other }) {
			if c.seq > mine.seq {
				h.breaks(id, "a batch has feedback %d after %d", mine.seq, c.seq)
			}
			continue
		}
		for _, m := range h.made[other] {
			over := !m.to.IsZero() || m.claim.replayed || h.tempo.slack > 0 && m.until.Before(call.from)
			if !over && !m.p.diedBy(call.from) && !m.p.sleptAt(m.claim.lease) && !m.p.isCut() && !h.wasLate(other) {
				h.breaks(id, "two calls of one client at once: feedback %d of process %d since %s, and %d",
					c.seq, m.p.name, m.from.Sub(h.began), mine.seq)
			}
		}
		if c.seq > mine.seq || c.batch > mine.batch {
			continue
		}
		moving := h.moving[other]
		row, err := h.ground.Delivery(context.Background(), other)
		if err != nil || row.Status.Final() || row.Status == outcome.Held || !h.released[other].IsZero() || moving {
			continue
		}
		passed, ok := h.passed[other]
		if ok && !passed.After(call.claim.started) || len(row.History) > 0 && !row.History[0].StartedAt.Add(orderDelay).After(call.claim.started) {
			h.counts["went ahead of one that had its time"]++
			continue
		}
		h.breaks(id, "feedback %d is called before %d, which is %s %s", mine.seq, c.seq, row.Status, row.Reason)
	}
}

// wasLate reports whether a late success ended the delivery while an older claim's call was running.
func (h *history) wasLate(id uuid.UUID) bool { _, ok := h.resolved[id]; return ok }

// delayEnds returns when an attempt with this outcome ends the delivery's delay of later ones, if it does. A hold ends it
// at once. So may an outcome that a later attempt records: its attempt may have begun long before.
func delayEnds(c *ledger.Claim, attempt int, started time.Time, o ledger.Outcome) (time.Time, bool) {
	switch {
	case o.Status == outcome.Held || attempt != c.Attempt:
		return started, true
	case o.Called || !o.Free || o.Stage != "claim" && o.Stage != "check":
		return started.Add(orderDelay), true
	}
	return time.Time{}, false
}

// knowOrder notes the ordering keys of a batch's deliveries.
func (h *history) knowOrder(batch int, rows []ledger.Intake) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, in := range rows {
		h.clients[in.Job.ID()] = ordered{in.Job.OrderKey(), in.Job.OrderSeq(), batch}
	}
}
