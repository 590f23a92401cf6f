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
	// maxBesideSlots is how many deliveries a worker may have claimed beside those in its slots: ahead of a slot, or
	// answered and not recorded yet. After kill -9 nobody knows what became of these and of the calls in flight.
	maxBesideSlots = 64
	// givenBackWait is how soon a delivery that found no slot here may be claimed again, here or elsewhere.
	givenBackWait = 100 * time.Millisecond
	// slotPatience is how long a claim ahead waits for a slot. It saves a few milliseconds of each slot's time: nothing
	// where calls take longer than this, while another worker may have a slot for the delivery now.
	slotPatience = 250 * time.Millisecond
)

// claimsAhead is how many deliveries a worker claims beyond its slots, so that a slot that becomes free does not wait
// for Postgres and Redis, and so that claims come in groups: at 2,000 a second ten are on their way when a claim and the
// end of a task take 5 ms together. With 16 slots, 16 were 15 % faster than 8. More would only be kept from other
// workers, and be in doubt after a kill.
func claimsAhead(slots int) int { return min(max(2, slots), 16) }

// completer keeps slots busy with calls. A delivery is claimed before it has a slot, and leaves its slot with the
// agent's answer: its record waits here, beside others, while the slot takes the next delivery. Each of the three is
// bounded, and a delivery that finds no room stays where it is.
//
// What waits for a slot does so with its claim, so that no other worker can run it: claimsAhead deliveries at most, for
// slotPatience. Then, and when the worker stops, it is given back without having cost an attempt, and its right to claim
// rests until a slot was held for less than that, or is free: a worker whose agents are slow takes no more than it has
// slots.
type completer struct {
	claims  chan struct{} // from before the claim to the agent's answer: as many as slots, and claimsAhead
	slots   chan struct{} // from the slot to the agent's answer
	records chan struct{} // from the agent's answer to the record
	turned  chan struct{} // a slot was held for a short time: one that rests goes on
	stopped chan struct{} // closed: who has no slot gets none
	stop    func()        // closes stopped
}

func newCompleter(slots int) *completer {
	ahead := claimsAhead(slots)
	c := &completer{claims: make(chan struct{}, slots+ahead), slots: make(chan struct{}, slots),
		records: make(chan struct{}, maxBesideSlots-ahead), turned: make(chan struct{}),
		stopped: make(chan struct{})}
	c.stop = sync.OnceFunc(func() { close(c.stopped) })
	return c
}

// slot is what one delivery holds of the completer. Its methods are called in this order by one goroutine.
type slot struct {
	of     *completer
	held   []chan struct{} // what it has a share of
	since  time.Time       // when it got the slot
	gaveUp bool            // it waited for a slot in vain
	told   chan taskEnd    // what asynq is told, once
}

// taskEnd is what asynq is told of a task.
type taskEnd struct {
	note string
	err  error
}

// begin waits for the right to claim; an error: nothing was begun.
func (c *completer) begin(ctx context.Context) (*slot, error) {
	s := &slot{of: c, told: make(chan taskEnd, 1)}
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

// acquire waits for a slot. An error gives the delivery back.
func (s *slot) acquire(ctx context.Context) error {
	patience := time.NewTimer(slotPatience)
	defer patience.Stop()
	select {
	case s.of.slots <- struct{}{}:
		s.held, s.since = append(s.held, s.of.slots), time.Now()
		return nil
	case <-patience.C:
		s.gaveUp = true
		return retry.Pause(reason.AgentBusy, givenBackWait,
			"other deliveries keep all slots of this worker; any worker may take this one")
	case <-s.of.stopped:
	case <-ctx.Done():
	}
	return retry.Pause(reason.AgentBusy, givenBackWait,
		"the worker stopped before it had a slot for this one; any worker may take it")
}

// rest keeps the right to claim of one that gave up, until slots are held for a short time again, or one is free.
func (s *slot) rest() {
	if !s.gaveUp {
		return
	}
	releaseAll(s.held[1:]) // what follows the right to claim
	s.held = s.held[:1]
	look := time.NewTicker(slotPatience)
	defer look.Stop()
	for {
		select {
		case <-s.of.turned:
			return
		case <-s.of.stopped:
			return
		case <-look.C:
			if len(s.of.slots) < cap(s.of.slots) {
				return
			}
		}
	}
}

// awaitRoom keeps the slot until the record may wait in the completer.
func (s *slot) awaitRoom() {
	s.of.records <- struct{}{}
	s.held = append(s.held, s.of.records)
}

// release gives the slot, and the right to claim, to other deliveries; what is left is to record this one. A plain
// success asynq is told now: the web UI shows nothing of it, and should this process die before it is recorded,
// Postgres has it running, and the reconciler brings it back when its lease runs out.
func (s *slot) release(delivered bool) {
	if s.gaveUp {
		return // see rest
	}
	if time.Since(s.since) < slotPatience {
		select {
		case s.of.turned <- struct{}{}:
		default: // nobody rests
		}
	}
	last := len(s.held) - 1
	releaseAll(s.held[:last])
	s.held = s.held[last:]
	if delivered {
		s.told <- taskEnd{}
	}
}

// end gives back whatever is held, and tells asynq how the task ended, if it has not been told.
func (s *slot) end(e taskEnd) {
	releaseAll(s.held)
	s.held = nil
	select {
	case s.told <- e:
	default:
	}
}

func releaseAll(held []chan struct{}) {
	for _, c := range held {
		<-c
	}
}
