package delivery

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/outcome"
)

const (
	// maxBesideSlots bounds the deliveries that a worker has claimed but that have none of its slots: they wait for a
	// slot, or their outcome is being recorded. If the worker is killed, Herald may not know the outcomes of these
	// deliveries and of the calls in flight.
	maxBesideSlots = 64
	// givenBackWait is the free wait of a claimed delivery that got no slot. After it, any worker may claim the
	// delivery.
	givenBackWait = 100 * time.Millisecond
	// slotTimeout is how long a claimed delivery waits for a slot. A claim before a slot is free saves a few
	// milliseconds (claimsAhead). After a longer wait, these do not matter, and another worker may have a free slot for
	// the delivery.
	slotTimeout = 250 * time.Millisecond
)

// claimsAhead returns how many deliveries a worker with this number of slots claims in addition to those that have a
// slot: the number of slots, but at least 2 and at most 16. So a free slot gets a claimed delivery at once, without a
// round trip to Postgres and Redis. Claims at the same time also share a statement to Postgres, which is cheaper.
//
// If claiming a delivery and ending its task take 5 ms together, a worker that makes 2,000 deliveries a second needs
// ten claims in advance. With 16 slots, 16 claims in advance were 15 % faster than 8. With more than 16, other workers
// would get fewer deliveries, and killing the worker would leave more unknown outcomes.
func claimsAhead(slots int) int { return min(max(2, slots), 16) }

// completer assigns a worker's slots to deliveries, and keeps the slots busy with calls. Each delivery passes three
// phases. First it is claimed and waits for a slot. Then it has the slot until the agent has answered. Then its outcome
// is recorded, while the slot already serves another delivery.
//
// Three channels (claims, slots, records) bound the deliveries in each phase: each delivery of the phase has one
// element in the channel. A delivery enters the next phase when that channel has room, and stays in its phase until
// then.
//
// No other worker can run a claimed delivery. So while all slots are busy, at most claimsAhead deliveries wait for one,
// each for at most slotTimeout. After that, or when the worker stops, the outcome of the delivery is a free wait of
// givenBackWait.
//
// A delivery that got no slot within slotTimeout keeps its element of claims until withholdClaim returns. So the worker
// claims no other delivery while its slots stay busy.
type completer struct {
	claims  chan struct{} // one element per delivery, from before its claim until ticket.release or ticket.end
	slots   chan struct{} // one element per used slot, from ticket.acquire until the agent has answered
	records chan struct{} // one element per delivery, from the agent's answer until its outcome is recorded
	turned  chan struct{} // gets a value after a slot was used for less than slotTimeout; ends one withholdClaim call
	stopped chan struct{} // closed: no delivery gets a slot
	stop    func()        // closes stopped
}

// newCompleter returns a completer for a worker with this number of slots.
func newCompleter(slots int) *completer {
	ahead := claimsAhead(slots)
	c := &completer{claims: make(chan struct{}, slots+ahead), slots: make(chan struct{}, slots),
		records: make(chan struct{}, maxBesideSlots-ahead), turned: make(chan struct{}),
		stopped: make(chan struct{})}
	c.stop = sync.OnceFunc(func() { close(c.stopped) })
	return c
}

// ticket is the state of one delivery in the completer. completer.begin creates it before the claim. Its methods are
// called in this order: acquire, awaitRoom, release, withholdClaim, end. One goroutine calls them at a time.
type ticket struct {
	of       *completer
	held     []chan struct{} // the completer's channels in which this delivery has an element
	since    time.Time       // when the delivery acquired its slot
	gaveUp   bool            // acquire got no slot within slotTimeout
	taskEnds chan taskEnd    // the end of the task for asynq, sent once
}

// taskEnd contains the two results of Runner.Deliver for asynq: a note for the web UI, and an error.
type taskEnd struct {
	note string
	err  error
}

// begin waits until the worker may claim one more delivery. It returns a ticket that has an element of the channel
// completer.claims, but no slot yet (acquire). It returns an error if nothing may be claimed, because the worker stops
// or ctx ended.
func (c *completer) begin(ctx context.Context) (*ticket, error) {
	t := &ticket{of: c, taskEnds: make(chan taskEnd, 1)}
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

// acquire acquires one of the worker's slots, and waits at most slotTimeout for it. If it gets none by then, or the
// worker stops or ctx ends before, the error is a free wait of givenBackWait, after which any worker may claim the
// delivery.
func (t *ticket) acquire(ctx context.Context) error {
	select {
	case t.of.slots <- struct{}{}:
		t.held, t.since = append(t.held, t.of.slots), time.Now()
		return nil
	case <-time.After(slotTimeout):
		t.gaveUp = true
		return outcome.Pause(outcome.AgentBusy, givenBackWait,
			"other deliveries keep all slots of this worker; any worker may take this one")
	case <-t.of.stopped:
	case <-ctx.Done():
	}
	return outcome.Pause(outcome.AgentBusy, givenBackWait,
		"the worker stopped before it had a slot for this one; any worker may take it")
}

// withholdClaim is called after the record. It returns at once, unless acquire got no slot within slotTimeout. In that
// case it keeps the delivery's element of the channel completer.claims, so that the worker claims no other delivery in
// its place. It returns when a slot is free, when another delivery has used a slot for less than slotTimeout, or when
// the worker stops. Then end releases the element.
func (t *ticket) withholdClaim() {
	if !t.gaveUp {
		return
	}
	releaseAll(t.held[1:]) // all except the element of claims
	t.held = t.held[:1]
	check := time.Tick(slotTimeout)
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

// awaitRoom waits until the outcome of the delivery may be recorded: it adds an element to the channel
// completer.records. Until then the delivery keeps its slot.
func (t *ticket) awaitRoom() {
	t.of.records <- struct{}{}
	t.held = append(t.held, t.of.records)
}

// release releases the slot and the delivery's element of the channel completer.claims, before the outcome is recorded.
// If the agent accepted the delivery (delivered), it also ends the task in asynq, which can then run another task
// during the record. If the process dies before the record, the delivery is still running in Postgres, and the
// reconciler dispatches it again when its lease expires. If acquire got no slot within slotTimeout, release does
// nothing.
func (t *ticket) release(delivered bool) {
	if t.gaveUp {
		return // the delivery keeps its element of claims until withholdClaim returns
	}
	if time.Since(t.since) < slotTimeout {
		select {
		case t.of.turned <- struct{}{}:
		default: // no withholdClaim waits
		}
	}
	last := len(t.held) - 1
	releaseAll(t.held[:last])
	t.held = t.held[last:]
	if delivered {
		t.taskEnds <- taskEnd{}
	}
}

// end releases all elements that the delivery still has in the completer's channels, and ends its task in asynq with e.
// If release has ended the task, e is ignored.
func (t *ticket) end(e taskEnd) {
	releaseAll(t.held)
	t.held = nil
	select {
	case t.taskEnds <- e:
	default:
	}
}

// releaseAll receives one element from each of these channels, which makes room for another delivery there.
func releaseAll(held []chan struct{}) {
	for _, c := range held {
		<-c
	}
}
