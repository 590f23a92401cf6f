package effort

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/store"
)

func randomFloat() float64 { return rand.Float64() }

// OverError means that the agent's budget is used up. That says nothing about the delivery: it costs no attempt.
type OverError struct {
	Wait time.Duration // when to come back: this delivery's own time, 1 s to 5 min
	Text string        // a sentence for people
}

func (e *OverError) Error() string { return e.Text }

// Hold is what one attempt reserves of its agent's budget, until End. It is used by one goroutine. The nil one is of
// Budgets that bound nobody.
type Hold struct {
	budgets *Budgets
	account *account
	costly  bool
	spent   [whats]float64
	reached int64 // µs: when the agent was asked for something first; 0: not yet. Budgets.mu guards it
	ended   bool
}

// Begin reserves what an attempt at the agent is expected to cost. The error is an *OverError.
func (b *Budgets) Begin(ctx context.Context, agent store.Agent) (*Hold, error) {
	if b == nil {
		return nil, nil
	}
	b.mu.Lock()
	a, met := b.findAccount(agent)
	if !met && !b.isAway() {
		b.mu.Unlock()
		b.loadShared(ctx, a)
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	now := b.readClock()
	a.addRefill(b.rules, now)
	used, reserved := a.usedAtMost(filesPart*b.rules.size), 0.0
	long := a.mean > float64(longAttempt.Microseconds())
	for _, h := range a.running {
		soFar := h.sumSoFar(now)
		long = long || soFar > float64(longAttempt.Microseconds())
		reserved += max(a.mean, soFar)
	}
	if used+reserved >= b.rules.size {
		return nil, b.refuseHold(a, now, used, reserved)
	}
	h := &Hold{budgets: b, account: a, costly: long || used >= costlyPart*b.rules.size}
	a.running = append(a.running, h)
	return h, nil
}

// sumSoFar is what the attempt cost the agent as far as it has come, in µs. The caller holds mu.
func (h *Hold) sumSoFar(now int64) float64 {
	if h.reached == 0 {
		return 0
	}
	return float64(now - h.reached)
}

// refuseHold says why, and when to come back: not all at once. The caller holds mu.
func (b *Budgets) refuseHold(a *account, now int64, used, reserved float64) *OverError {
	until := now + max(int64((used+reserved-b.rules.size)/b.rules.refill), minWait.Microseconds())
	back := max(a.line, until)
	a.line = back + int64(max(a.mean, float64(leastPrice[Connections].Microseconds()))/b.rules.refill)
	wait := time.Duration(back-now) * time.Microsecond
	if wait >= maxWait {
		// The line is full: all who come now would be told the same.
		a.line = now + maxWait.Microseconds()
		wait = maxWait/2 + time.Duration(b.random()*float64(maxWait/2))
	}
	text := fmt.Sprintf("the agent's effort budget is used up: of %s of worker time a minute, %s are used (%s)",
		formatSeconds(b.size), formatMicros(used), describeParts(a.parts))
	if n := len(a.running); n > 0 {
		text += fmt.Sprintf(", and %s more are reserved for %d under way", formatMicros(reserved), n)
	}
	return &OverError{wait, fmt.Sprintf("%s; this one waits until %s (%s)", text,
		b.clock().Add(wait).UTC().Format("15:04:05 UTC"), wait.Round(100*time.Millisecond))}
}

// CheckFiles refuses a delivery that has a file to fetch when files have eaten their part of the budget.
func (h *Hold) CheckFiles() error {
	if h == nil {
		return nil
	}
	b, a := h.budgets, h.account
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.readClock()
	a.addRefill(b.rules, now)
	most := filesPart * b.rules.size
	files := a.parts[Fetches]
	if files < most {
		return nil
	}
	wait := time.Duration((files-most)/b.rules.refill)*time.Microsecond + minWait
	wait = min(wait+time.Duration(b.random()*float64(wait)), maxWait)
	return &OverError{wait, fmt.Sprintf("files that feedback of this agent names have used %s of the %s of worker time a minute that they may have "+
		"of the agent's effort budget; this one has a file too, and waits until %s (%s)", formatMicros(files), formatSeconds(time.Duration(most)*time.Microsecond),
		b.clock().Add(wait).UTC().Format("15:04:05 UTC"), wait.Round(100*time.Millisecond))}
}

// Costly tells whether the agent shares a part of the slots with others like it: its latest attempts took long, or it
// has used much.
func (h *Hold) Costly() bool { return h != nil && h.costly }

// Reach notes that the agent is asked for something from now on: how long that takes is its own affair.
func (h *Hold) Reach() {
	if h == nil {
		return
	}
	h.budgets.mu.Lock()
	defer h.budgets.mu.Unlock()
	if h.reached == 0 {
		h.reached = h.budgets.readClock()
	}
}

// Spend adds n things that took so long together; none: it was waited for those of another attempt.
func (h *Hold) Spend(w What, n int, took time.Duration) {
	if h != nil && !h.ended && (n > 0 || took > 0) {
		h.spent[w] += float64(priceOf(w, n, took).Microseconds())
	}
}

// End charges what was spent, and gives the reservation back. Further calls do nothing.
func (h *Hold) End() {
	if h == nil || h.ended {
		return
	}
	h.ended = true
	b, a := h.budgets, h.account
	b.mu.Lock()
	defer b.mu.Unlock()
	a.running = slices.DeleteFunc(a.running, func(o *Hold) bool { return o == h })
	if sumParts(h.spent) == 0 {
		return
	}
	if own := sumParts(h.spent) - h.spent[Fetches]; own > 0 {
		if a.mean == 0 {
			a.mean = own
		}
		a.mean += meanWeight * (own - a.mean)
	}
	b.chargeAccount(a, h.spent)
}

// describeParts is what ate a budget, the largest first: "calls 58.1 s, connections 2 s".
func describeParts(parts [whats]float64) string {
	var order []What
	for w := range whats {
		if parts[w] > 0 {
			order = append(order, w)
		}
	}
	slices.SortStableFunc(order, func(x, y What) int { return int(parts[y] - parts[x]) })
	var words []string
	for _, w := range order {
		words = append(words, w.String()+" "+formatMicros(parts[w]))
	}
	if len(words) == 0 {
		return "nothing yet"
	}
	return strings.Join(words, ", ")
}

// formatMicros is µs of effort for people: "58.1 s".
func formatMicros(x float64) string { return formatSeconds(time.Duration(x) * time.Microsecond) }

func formatSeconds(d time.Duration) string {
	return fmt.Sprintf("%g s", d.Round(100*time.Millisecond).Seconds())
}
