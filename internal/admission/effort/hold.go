package effort

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
)

func randomFloat() float64 { return rand.Float64() }

// OverError means that the agent's effort budget is used up. The delivery gets a free wait: a wait after which the
// attempt does not count.
type OverError struct {
	Wait time.Duration // until the delivery may try again, different for each delivery: 1 s to 5 min
	Text string        // a sentence for the operator
}

func (e *OverError) Error() string { return e.Text }

// Hold is the reservation of worker time for one attempt in its agent's effort budget, from Begin until End. It also
// collects the attempt's cost (Spend). Only CheckFiles is safe for concurrent use. The methods of a nil Hold, which nil
// Budgets return, do nothing.
type Hold struct {
	budgets *Budgets
	account *account
	costly  bool
	spent   [kindCount]float64
	reached int64 // µs: when the attempt first contacted the agent; 0: not yet. Budgets.mu guards it
	ended   bool
}

// Begin reserves the expected cost of an attempt in the agent's effort budget: the mean cost of the agent's latest
// attempts. If the used and reserved worker time already reaches the size of the budget, Begin returns an *OverError.
// Of the time used for files, it counts at most filesPart of the budget. There is no other error: if Redis does not
// answer, this process decides alone. Nil Budgets return a nil Hold.
func (b *Budgets) Begin(ctx context.Context, agent erc8004.Agent) (*Hold, error) {
	if b == nil {
		return nil, nil
	}
	b.mu.Lock()
	a := b.findAccount(agent)
	if a.mean == 0 && !b.isAway() { // another worker may have charged the agent already
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

// sumSoFar returns the time in µs since the attempt first contacted the agent; 0: it has not. The caller holds mu.
func (h *Hold) sumSoFar(now int64) float64 {
	if h.reached == 0 {
		return 0
	}
	return float64(now - h.reached)
}

// refuseHold returns the refusal of a reservation. used and reserved are the agent's used and reserved worker time in
// µs. The wait lasts until the budget has refilled, at least minWait. Each further refused delivery waits longer, by
// the time in which the mean cost of an attempt is refilled. A wait that would reach maxWait is random instead, between
// half of maxWait and maxWait. The caller holds mu.
func (b *Budgets) refuseHold(a *account, now int64, used, reserved float64) *OverError {
	until := now + max(int64((used+reserved-b.rules.size)/b.rules.refill), minWait.Microseconds())
	back := max(a.nextReturn, until)
	a.nextReturn = back + int64(max(a.mean, float64(leastPrice[Connections].Microseconds()))/b.rules.refill)
	wait := time.Duration(back-now) * time.Microsecond
	if wait >= maxWait {
		// All deliveries that would wait for maxWait or longer get a random wait, so that they do not return together.
		a.nextReturn = now + maxWait.Microseconds()
		wait = maxWait/2 + time.Duration(b.random()*float64(maxWait/2))
	}
	text := fmt.Sprintf("the agent's effort budget is used up: of %s of worker time a minute, %s are used (%s)",
		formatSeconds(b.size), formatMicros(used), describeUsed(a.used))
	if n := len(a.running); n > 0 {
		text += fmt.Sprintf(", and %s more are reserved for %d under way", formatMicros(reserved), n)
	}
	return &OverError{wait, fmt.Sprintf("%s; this one waits until %s (%s)", text,
		b.clock().Add(wait).UTC().Format("15:04:05 UTC"), wait.Round(100*time.Millisecond))}
}

// CheckFiles returns an *OverError if files of kind w have used their part of the agent's budget, and otherwise nil. w
// is Fetches (filesPart) or ResponseFetches (responsesPart). Call it before a file is fetched.
func (h *Hold) CheckFiles(w What) error {
	if h == nil {
		return nil
	}
	b, a := h.budgets, h.account
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.readClock()
	a.addRefill(b.rules, now)
	most, of := filesPart*b.rules.size, "feedback"
	if w == ResponseFetches {
		most, of = responsesPart*b.rules.size, "responses"
	}
	files := a.used[w]
	if files < most {
		return nil
	}
	wait := time.Duration((files-most)/b.rules.refill)*time.Microsecond + minWait
	wait = min(wait+time.Duration(b.random()*float64(wait)), maxWait)
	return &OverError{wait, fmt.Sprintf("files that %s of this agent names have used %s of the %s of worker time a "+
		"minute that they may have of the agent's effort budget; this one has a file too, and waits until %s (%s)",
		of, formatMicros(files), formatSeconds(time.Duration(most)*time.Microsecond),
		b.clock().Add(wait).UTC().Format("15:04:05 UTC"), wait.Round(100*time.Millisecond))}
}

// Costly reports whether the agent was costly when the attempt began. An agent is costly if its latest attempts took
// more than longAttempt on average, if a running attempt has taken that long, or if costlyPart of its budget is used.
// The result does not change during the attempt. For a nil Hold it is false.
func (h *Hold) Costly() bool { return h != nil && h.costly }

// Reach records that the attempt contacts the agent now. From the first such contact on, the attempt reserves at least
// the time that has passed since.
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

// Spend adds the cost of n calls, connections, listings or fetches (w says which) to the cost that End charges. took is
// their total duration. n is 0 if the attempt only waited for a connection or a tool list of another attempt. Then only
// the time is charged.
func (h *Hold) Spend(w What, n int, took time.Duration) {
	if h != nil && !h.ended && (n > 0 || took > 0) {
		h.spent[w] += float64(priceOf(w, n, took).Microseconds())
	}
}

// End charges the cost of the attempt to the agent, and releases the reservation. If the attempt cost anything besides
// fetching files, that cost also changes the agent's mean cost. Further calls do nothing.
func (h *Hold) End() {
	if h == nil || h.ended {
		return
	}
	h.ended = true
	b, a := h.budgets, h.account
	b.mu.Lock()
	defer b.mu.Unlock()
	a.running = slices.DeleteFunc(a.running, func(o *Hold) bool { return o == h })
	if sumKinds(h.spent) == 0 {
		return
	}
	if own := sumKinds(h.spent) - h.spent[Fetches] - h.spent[ResponseFetches]; own > 0 {
		if a.mean == 0 {
			a.mean = own
		}
		a.mean += meanWeight * (own - a.mean)
	}
	b.chargeAccount(a, h.spent)
}

// describeUsed returns the used worker time for each kind of work, the largest first: "calls 58.1 s, connections 2 s".
func describeUsed(parts [kindCount]float64) string {
	var order []What
	for w := range kindCount {
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

// formatMicros formats µs of worker time: "58.1 s".
func formatMicros(x float64) string { return formatSeconds(time.Duration(x) * time.Microsecond) }

func formatSeconds(d time.Duration) string {
	return fmt.Sprintf("%g s", d.Round(100*time.Millisecond).Seconds())
}
