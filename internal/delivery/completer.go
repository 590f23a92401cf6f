package delivery

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/reason"
)

const (
	// maxBesideSlots bounds the deliveries that a worker has claimed and that are not in a slot, because they wait for
	// a slot or for their record. After kill -9, the outcomes of these and of the calls in flight may be unknown.
	maxBesideSlots = 64
	// givenBackWait is how long a delivery that got no slot waits before any worker may claim it again.
	givenBackWait = 100 * time.Millisecond
	// slotTimeout is how long a claimed delivery waits for a slot. Claiming ahead saves a few milliseconds per slot,
	// which does not matter if calls take longer than this. Another worker may have a free slot for the delivery.
	slotTimeout = 250 * time.Millisecond
)

// claimsAhead returns how many deliveries a worker claims beyond its slots. So a free slot does not wait for Postgres
// and Redis, and claims form groups: at 2,000 deliveries a second, ten are on their way if a claim and the end of a
// task take 5 ms together. With 16 slots, 16 claims ahead were 15 % faster than 8. More would only keep deliveries from
// other workers, and would leave more unknown outcomes after a kill.
func claimsAhead(slots int) int { return min(max(2, slots), 16) }

// completer keeps the slots busy with calls. A delivery is claimed before it has a slot, and it leaves the slot with
// the agent's answer. Then its record waits here while the slot serves the next delivery. The number of deliveries in
// each of these three phases is bounded, and a delivery stays in its phase until the next one has room.
//
// A delivery that waits for a slot is claimed, so no other worker can run it. Therefore at most claimsAhead deliveries
// wait, each for at most slotTimeout. After that, or when the worker stops, the delivery is released at no cost. Its
// element of claims is then kept until a slot is free, or a slot was held for less than slotTimeout (withholdClaim). So
// a worker with slow agents claims at most as many deliveries as it has slots.
type completer struct {
	claims  chan struct{} // held from before the claim until the agent's answer; capacity: slots plus claimsAhead
	slots   chan struct{} // held from the slot until the agent's answer
	records chan struct{} // held from the agent's answer until the record
	turned  chan struct{} // receives when a slot was held for less than slotTimeout: ends one withholdClaim
	stopped chan struct{} // closed: no delivery gets a slot
	stop    func()        // closes stopped
}

// newCompleter returns a completer for a worker with so many slots.
func newCompleter(slots int) *completer {
	ahead := claimsAhead(slots)
	c := &completer{claims: make(chan struct{}, slots+ahead), slots: make(chan struct{}, slots),
		records: make(chan struct{}, maxBesideSlots-ahead), turned: make(chan struct{}),
		stopped: make(chan struct{})}
	c.stop = sync.OnceFunc(func() { close(c.stopped) })
	return c
}

// slot is the state of one delivery in the completer. Its methods are called in the order below, by one goroutine at a
// time.
type slot struct {
	of       *completer
	held     []chan struct{} // the completer's channels in which this delivery has an element
	since    time.Time       // when it acquired the slot
	gaveUp   bool            // acquire got no slot within slotTimeout
	taskEnds chan taskEnd    // the end of the task for asynq, sent once
}

// taskEnd is the note and the error that Runner.Deliver returns to asynq for a task.
type taskEnd struct {
	note string
	err  error
}

// begin waits for the right to claim one delivery. The result holds that right; acquire adds a slot of the worker.
// After an error, because the worker stops or ctx ended, nothing may be claimed.
func (c *completer) begin(ctx context.Context) (*slot, error) {
	s := &slot{of: c, taskEnds: make(chan taskEnd, 1)}
	select {
	case c.claims <- struct{}{}:
		s.held = append(s.held, c.claims)
		return s, nil
	case <-c.stopped:
		return nil, errors.New("this worker is shutting down")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// acquire waits at most slotTimeout for a slot of the worker. Its error is a free wait of givenBackWait, after which
// any worker may claim the delivery.
func (s *slot) acquire(ctx context.Context) error {
	timeout := time.NewTimer(slotTimeout)
	defer timeout.Stop()
	select {
	case s.of.slots <- struct{}{}:
		s.held, s.since = append(s.held, s.of.slots), time.Now()
		return nil
	case <-timeout.C:
		s.gaveUp = true
		return retry.Pause(reason.AgentBusy, givenBackWait,
			"other deliveries keep all slots of this worker; any worker may take this one")
	case <-s.of.stopped:
	case <-ctx.Done():
	}
	return retry.Pause(reason.AgentBusy, givenBackWait,
		"the worker stopped before it had a slot for this one; any worker may take it")
}

// withholdClaim does nothing if acquire got a slot. Otherwise it keeps the delivery's right to claim, so that no other
// delivery is claimed, until a slot is free, slots are held only briefly again, or the worker stops.
func (s *slot) withholdClaim() {
	if !s.gaveUp {
		return
	}
	releaseAll(s.held[1:]) // all except the right to claim
	s.held = s.held[:1]
	check := time.NewTicker(slotTimeout)
	defer check.Stop()
	for {
		select {
		case <-s.of.turned:
			return
		case <-s.of.stopped:
			return
		case <-check.C:
			if len(s.of.slots) < cap(s.of.slots) {
				return
			}
		}
	}
}

// awaitRoom waits until there is room for another record, and keeps the slot until then.
func (s *slot) awaitRoom() {
	s.of.records <- struct{}{}
	s.held = append(s.held, s.of.records)
}

// release releases the slot and the right to claim, before the record. If delivered is set, it also reports the end of
// the task to asynq, because the record of a plain success changes nothing in the web UI. If the process dies before
// the record, the delivery is still running in Postgres, and the reconciler dispatches it again when its lease expires.
// After acquire got no slot, release does nothing.
func (s *slot) release(delivered bool) {
	if s.gaveUp {
		return // withholdClaim needs the right to claim
	}
	if time.Since(s.since) < slotTimeout {
		select {
		case s.of.turned <- struct{}{}:
		default: // no right to claim is withheld
		}
	}
	last := len(s.held) - 1
	releaseAll(s.held[:last])
	s.held = s.held[last:]
	if delivered {
		s.taskEnds <- taskEnd{}
	}
}

// end releases everything that is held, and reports the end of the task to asynq unless release has done so.
func (s *slot) end(e taskEnd) {
	releaseAll(s.held)
	s.held = nil
	select {
	case s.taskEnds <- e:
	default:
	}
}

// releaseAll releases a delivery's elements: it takes one element out of each channel.
func releaseAll(held []chan struct{}) {
	for _, c := range held {
		<-c
	}
}
