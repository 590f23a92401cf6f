package ratelimit

import (
	"container/list"
	"slices"
)

// origin is this process' state of one origin. While the limits are shared through Redis, Redis decides, and this
// process only keeps originState up to date. Without Redis, during its outage, or while there is no other worker,
// originState decides. Limiter.mu guards all fields.
type origin struct {
	originState
	key          string
	endpoints    int            // number of its endpoints in Limiter.endpoints; the origin is dropped with the last one
	waitingCalls []*waitingCall // calls that wait here for a permit, the longest first; only the first of each endpoint asks
	// missed: a call was refused because this process' calls held all permits of the origin. A call holds a permit here
	// while it asks Redis for one, so some of these calls may hold theirs only for that moment. If Redis refuses such a
	// call, the limiter clears missed and wakes a waiter.
	missed bool
}

// endpoint is this process' state of one endpoint. Limiter.mu guards all fields.
type endpoint struct {
	circuit
	origin *origin
	used   int64 // time of the last Acquire, in µs (Limiter.now)
	users  int   // calls of Acquire in progress
}

// waitingCall is a call that waits in this process for a permit.
type waitingCall struct {
	endpoint *endpoint
	wake     chan struct{} // gets a value when the waiter should try again; capacity 1
}

// endpointKey returns the key of an endpoint, in memory and in Redis, from the key of its origin and its id.
func endpointKey(originKey, id string) string { return originKey + ":" + id }

// findEndpoint returns the endpoint id at an origin and marks it as used now. If this process does not know the
// endpoint, findEndpoint evicts idle endpoints and then adds it. The caller holds mu.
func (l *Limiter) findEndpoint(originKey, id string) *endpoint {
	now := l.now()
	key := endpointKey(originKey, id)
	if el, ok := l.endpoints[key]; ok {
		l.lru.MoveToFront(el)
		e := el.Value.(*endpoint)
		e.used = now
		return e
	}
	l.evictIdle(now)
	o := l.origins[originKey]
	if o == nil {
		o = &origin{key: originKey}
		l.origins[originKey] = o
	}
	o.endpoints++
	e := &endpoint{circuit: circuit{id: id}, origin: o, used: now}
	l.endpoints[key] = l.lru.PushFront(e)
	return e
}

// evictIdle drops idle endpoints; call it before adding an endpoint. Each call checks the two least recently used
// endpoints, and drops those that have been idle for the window of a breaker plus its open time. So each endpoint that
// stays idle is dropped sooner or later. If maxEndpoints is still reached, evictIdle drops the least recently used idle
// endpoints, no matter how long they were idle, until one more fits.
func (l *Limiter) evictIdle(now int64) {
	long := buckets*l.rules.bucket + l.rules.openFor
	el := l.lru.Back()
	for range 2 {
		if el == nil {
			return
		}
		previous := el.Prev()
		if e := el.Value.(*endpoint); now-e.used > long && l.isIdle(e, now) {
			l.dropEndpoint(el)
		}
		el = previous
	}
	// This loop is short, because only the endpoints of this process' current calls are not idle.
	for el := l.lru.Back(); el != nil && len(l.endpoints) >= l.maxEndpoints; {
		previous := el.Prev()
		if l.isIdle(el.Value.(*endpoint), now) {
			l.dropEndpoint(el)
		}
		el = previous
	}
}

func (l *Limiter) dropEndpoint(el *list.Element) {
	l.lru.Remove(el)
	e := el.Value.(*endpoint)
	delete(l.endpoints, endpointKey(e.origin.key, e.id))
	if e.origin.endpoints--; e.origin.endpoints == 0 {
		delete(l.origins, e.origin.key)
	}
}

// isIdle reports whether no call of this process acquires or holds a permit at the endpoint. It first drops the permits
// of the origin that have expired at now (µs).
func (l *Limiter) isIdle(e *endpoint, now int64) bool {
	e.origin.dropExpired(now)
	return e.users == 0 && e.origin.countHeld(&l.rules, now, e.id) == 0
}

// wakeFrom wakes the first waiter in o.waitingCalls[i:] that has waited longest for its endpoint (isFirst), and no other one.
// It does nothing if o.waitingCalls[i:] has no such waiter.
func (o *origin) wakeFrom(i int) {
	for ; i < len(o.waitingCalls); i++ {
		if o.isFirst(o.waitingCalls[i]) {
			select {
			case o.waitingCalls[i].wake <- struct{}{}:
			default: // it is awake already
			}
			return
		}
	}
}

// isFirst reports whether w is the first in o.waitingCalls of those that wait for its endpoint. It is false if w is not in the
// queue.
func (o *origin) isFirst(w *waitingCall) bool {
	for _, other := range o.waitingCalls {
		if other.endpoint == w.endpoint {
			return other == w
		}
	}
	return false
}

// countWaitingCalls returns how many calls in o.waitingCalls wait for a permit at the endpoint e.
func (o *origin) countWaitingCalls(e *endpoint) int {
	n := 0
	for _, w := range o.waitingCalls {
		if w.endpoint == e {
			n++
		}
	}
	return n
}

// countRunning returns the number of this process' calls to the endpoint id that hold a permit, and how many of these
// have had it for more than most (µs). now is in µs.
func (o *origin) countRunning(r *rules, now int64, id string, most int64) (calls, longer int) {
	for token, until := range o.permits {
		if !isHeldBy(token, id) {
			continue
		}
		calls++
		if began := until - r.hold; now-began > most {
			longer++
		}
	}
	return calls, longer
}

// passOn wakes the next waiter after w in o.waitingCalls (wakeFrom). Call it when w was woken but got no permit.
func (o *origin) passOn(w *waitingCall) {
	if i := slices.Index(o.waitingCalls, w); i >= 0 {
		o.wakeFrom(i + 1)
	}
}

// removeWaitingCall removes w from o.waitingCalls. If w was the first of its endpoint (isFirst), removeWaitingCall wakes the next waiter
// after w (wakeFrom), so that it tries instead of w.
func (o *origin) removeWaitingCall(w *waitingCall) {
	if i := slices.Index(o.waitingCalls, w); i >= 0 {
		first := o.isFirst(w)
		o.waitingCalls = slices.Delete(o.waitingCalls, i, i+1)
		if first {
			o.wakeFrom(i)
		}
	}
}
