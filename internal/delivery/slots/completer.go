// Package slots assigns a worker's slots to its deliveries, and bounds the deliveries that the worker has claimed. It
// knows neither the deliveries nor the store.
//
// Invariants: a delivery has a ticket from before its claim until its task ends. Of the claimed deliveries, at most
// MaxBesideSlots have no slot.
package slots

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/outcome"
)

const (
	// MaxBesideSlots bounds the deliveries that a worker has claimed but that have none of its slots: they wait for a
	// slot, or their outcome is being recorded. If the worker is killed, Herald may not know the outcomes of these
	// deliveries and of the calls in flight.
	MaxBesideSlots = 64
	// givenBackWait is the free wait of a claimed delivery that got no slot. After it, any worker may claim the
	// delivery.
	givenBackWait = 100 * time.Millisecond
	// Timeout is how long a claimed delivery waits for a slot. A claim before a slot is free saves a few
	// milliseconds (ClaimsAhead). After a longer wait, these do not matter, and another worker may have a free slot for
	// the delivery.
	Timeout = 250 * time.Millisecond
)

// ClaimsAhead returns how many deliveries a worker with this number of slots claims in addition to those that have a
// slot: the number of slots, but at least 2 and at most 16. So a free slot gets a claimed delivery at once, without a
// round trip to Postgres and Redis. Claims at the same time also share a statement to Postgres, which is cheaper.
//
// If claiming a delivery and ending its task take 5 ms together, a worker that makes 2,000 deliveries a second needs
// ten claims in advance. With 16 slots, 16 claims in advance were 15 % faster than 8. With more than 16, other workers
// would get fewer deliveries, and killing the worker would leave more unknown outcomes.
func ClaimsAhead(slots int) int { return min(max(2, slots), 16) }

// Completer assigns a worker's slots to deliveries, and keeps the slots busy with calls. Each delivery passes three
// phases. First it is claimed and waits for a slot. Then it has the slot until the agent has answered. Then its outcome
// is recorded, while the slot already serves another delivery.
//
// Three channels (claims, slots, records) bound the deliveries in each phase: each delivery of the phase has one
// element in the channel. A delivery enters the next phase when that channel has room, and stays in its phase until
// then.
//
// No other worker can run a claimed delivery. So while all slots are busy, at most ClaimsAhead deliveries wait for one,
// each for at most Timeout. After that, or when the worker stops, the outcome of the delivery is a free wait of
// givenBackWait.
//
// A delivery that got no slot within Timeout keeps its element of claims until WithholdClaim returns. So the worker
// claims no other delivery while its slots stay busy.
type Completer struct {
	claims  chan struct{} // one element per delivery, from before its claim until ticket.release or ticket.end
	slots   chan struct{} // one element per used slot, from ticket.acquire until the agent has answered
	records chan struct{} // one element per delivery, from the agent's answer until its outcome is recorded
	turned  chan struct{} // gets a value after a slot was used for less than Timeout; ends one WithholdClaim call
	stopped chan struct{} // closed: no delivery gets a slot
	Stop    func()        // closes stopped
}

// New returns a completer for a worker with this number of slots.
func New(slots int) *Completer {
	ahead := ClaimsAhead(slots)
	c := &Completer{claims: make(chan struct{}, slots+ahead), slots: make(chan struct{}, slots),
		records: make(chan struct{}, MaxBesideSlots-ahead), turned: make(chan struct{}),
		stopped: make(chan struct{})}
	c.Stop = sync.OnceFunc(func() { close(c.stopped) })
	return c
}

// Capacity returns how many deliveries may be claimed and wait for a slot or have one.
func (c *Completer) Capacity() int { return cap(c.claims) }

// Count returns the numbers of deliveries that are claimed, have a slot, and are being recorded.
func (c *Completer) Count() (claims, slots, records int) {
	return len(c.claims), len(c.slots), len(c.records)
}

// Ticket is the state of one delivery in the completer. completer.begin creates it before the claim. Its methods are
// called in this order: acquire, AwaitRoom, release, WithholdClaim, end. One goroutine calls them at a time.
type Ticket struct {
	of       *Completer
	held     []chan struct{} // the completer's channels in which this delivery has an element
	since    time.Time       // when the delivery acquired its slot
	GaveUp   bool            // acquire got no slot within Timeout
	TaskEnds chan TaskEnd    // the end of the task for asynq, sent once
}

// TaskEnd contains the two results of Runner.Deliver for asynq: a note for the web UI, and an error.
type TaskEnd struct {
	Note string
	Err  error
}

// Begin waits until the worker may claim one more delivery. It returns a ticket that has an element of the channel
// completer.claims, but no slot yet (acquire). It returns an error if nothing may be claimed, because the worker stops
// or ctx ended.
func (c *Completer) Begin(ctx context.Context) (*Ticket, error) {
	t := &Ticket{of: c, TaskEnds: make(chan TaskEnd, 1)}
	select {
	case c.claims <- struct{}{}:
		t.held = append(t.held, c.claims)
		return t, nil
	case <-c.stopped:
		return nil, errors.New("this worker is shutting down")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Acquire acquires one of the worker's slots, and waits at most Timeout for it. If it gets none by then, or the
// worker stops or ctx ends before, the error is a free wait of givenBackWait, after which any worker may claim the
// delivery.
func (t *Ticket) Acquire(ctx context.Context) error {
	select {
	case t.of.slots <- struct{}{}:
		t.held, t.since = append(t.held, t.of.slots), time.Now()
		return nil
	case <-time.After(Timeout):
		t.GaveUp = true
		return outcome.Pause(outcome.AgentBusy, givenBackWait,
			"other deliveries keep all slots of this worker; any worker may take this one")
	case <-t.of.stopped:
	case <-ctx.Done():
	}
	return outcome.Pause(outcome.AgentBusy, givenBackWait,
		"the worker stopped before it had a slot for this one; any worker may take it")
}

// WithholdClaim is called after the record. It returns at once, unless acquire got no slot within Timeout. In that
// case it keeps the delivery's element of the channel completer.claims, so that the worker claims no other delivery in
// its place. It returns when a slot is free, when another delivery has used a slot for less than Timeout, or when
// the worker stops. Then end releases the element.
func (t *Ticket) WithholdClaim() {
	if !t.GaveUp {
		return
	}
	releaseAll(t.held[1:]) // all except the element of claims
	t.held = t.held[:1]
	check := time.Tick(Timeout)
	for {
		select {
		case <-t.of.turned:
			return
		case <-t.of.stopped:
			return
		case <-check:
			if len(t.of.slots) < cap(t.of.slots) {
				return
			}
		}
	}
}

// AwaitRoom waits until the outcome of the delivery may be recorded: it adds an element to the channel
// completer.records. Until then the delivery keeps its slot.
func (t *Ticket) AwaitRoom() {
	t.of.records <- struct{}{}
	t.held = append(t.held, t.of.records)
}

// Release releases the slot and the delivery's element of the channel completer.claims, before the outcome is recorded.
// If the agent accepted the delivery (delivered), it also ends the task in asynq, which can then run another task
// during the record. If the process dies before the record, the delivery is still running in Postgres, and the
// reconciler dispatches it again when its lease expires. If acquire got no slot within Timeout, release does
// nothing.
func (t *Ticket) Release(delivered bool) {
	if t.GaveUp {
		return // the delivery keeps its element of claims until WithholdClaim returns
	}
	if time.Since(t.since) < Timeout {
		select {
		case t.of.turned <- struct{}{}:
		default: // no WithholdClaim waits
		}
	}
	last := len(t.held) - 1
	releaseAll(t.held[:last])
	t.held = t.held[last:]
	if delivered {
		t.TaskEnds <- TaskEnd{}
	}
}

// End releases all elements that the delivery still has in the completer's channels, and ends its task in asynq with e.
// If release has ended the task, e is ignored.
func (t *Ticket) End(e TaskEnd) {
	releaseAll(t.held)
	t.held = nil
	select {
	case t.TaskEnds <- e:
	default:
	}
}

// releaseAll receives one element from each of these channels, which makes room for another delivery there.
func releaseAll(held []chan struct{}) {
	for _, c := range held {
		<-c
	}
}
