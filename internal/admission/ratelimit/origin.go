package ratelimit

import (
	"container/list"
	"slices"
)

// origin is this process' state of one origin. While the limits are shared, it is what Redis last stored, as far as
// this process knows. Limiter.mu guards all fields.
type origin struct {
	originState                  // with the permits of this process only
	others      map[string]int64 // the Permits of other processes, which count while the limits are shared
	version     string           // version of the state in Redis from which this state comes; "": none

	steps      []*step // they wait for the next commit
	committing bool    // commitSteps runs

	key       string
	endpoints int // entries of Limiter.endpoints at this origin; with the last one, the origin is dropped

	// waitingCalls has the calls that wait in this process for a permit, oldest first. Only the first call of each
	// endpoint asks for one.
	waitingCalls []*waitingCall
}

// endpoint is this process' state of one endpoint at an origin. Limiter.mu guards all fields.
type endpoint struct {
	circuit
	version string // version of the state in Redis from which circuit comes; "": none
	origin  *origin
	used    int64  // time of the last Acquire, in µs (Limiter.now)
	users   int    // calls of Acquire in progress for this endpoint
	fault   string // Permit.Fault of this process's latest failed call

	changedAlone bool // Redis has not stored the result of this process' latest step (commitChanges)
}

// waitingCall is a call to an agent that waits in this process for a permit.
type waitingCall struct {
	endpoint *endpoint
	wake     chan struct{} // gets a value when the call should ask for a permit again; capacity 1
}

// endpointKey returns the key of an endpoint, in memory and in Redis: the key of its origin and its id.
func endpointKey(originKey, id string) string { return originKey + ":" + id }

// findEndpoint returns the endpoint with this id at an origin and marks it as used now. If this process does not know
// the endpoint, findEndpoint adds it, after it has evicted idle endpoints. The caller holds Limiter.mu.
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

// evictIdle drops idle endpoints (isIdle). It runs before each new endpoint is added. It checks the two least recently
// used endpoints, and drops those that have been idle for a breaker's window plus its open time. So each endpoint that
// stays idle is dropped sooner or later. If maxEndpoints is still reached, evictIdle drops least recently used idle
// endpoints, however short they were idle, until one more fits.
func (l *Limiter) evictIdle(now int64) {
	long := buckets*l.rules.bucket + l.rules.openFor
	el := l.lru.Back()
	for range 2 {
		if el == nil {
			break
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

// isIdle reports whether no call of this process asks for or holds a permit at the endpoint. It first drops the expired
// permits of the origin. now is in µs.
func (l *Limiter) isIdle(e *endpoint, now int64) bool {
	e.origin.dropExpired(now)
	return e.users == 0 && e.origin.countHeld(&l.rules, now, e.id) == 0
}

// wakeFrom wakes one call: the first one in o.waitingCalls[i:] that is the oldest waiting call of its endpoint
// (isFirst). If there is no such call, it does nothing.
func (o *origin) wakeFrom(i int) {
	for ; i < len(o.waitingCalls); i++ {
		if o.isFirst(o.waitingCalls[i]) {
			select {
			case o.waitingCalls[i].wake <- struct{}{}:
			default: // it has been woken already
			}
			return
		}
	}
}

// isFirst reports whether w is the oldest waiting call of its endpoint. It is false if w is not in o.waitingCalls.
func (o *origin) isFirst(w *waitingCall) bool {
	for _, other := range o.waitingCalls {
		if other.endpoint == w.endpoint {
			return other == w
		}
	}
	return false
}

// countWaitingCalls returns how many calls wait in this process for a permit at the endpoint e.
func (o *origin) countWaitingCalls(e *endpoint) int {
	n := 0
	for _, w := range o.waitingCalls {
		if w.endpoint == e {
			n++
		}
	}
	return n
}

// countRunning returns how many calls of this process to the endpoint with this id hold a permit, and how many of these
// calls have held it for longer than limit. Times are in µs.
func (o *origin) countRunning(r *rules, now int64, id string, limit int64) (calls, longer int) {
	for token, until := range o.Permits {
		if !isHeldBy(token, id) {
			continue
		}
		calls++
		if began := until - r.hold; now-began > limit {
			longer++
		}
	}
	return calls, longer
}

// passOn wakes the next call after w (wakeFrom). w was woken, but got no permit. The next call may get one.
func (o *origin) passOn(w *waitingCall) {
	if i := slices.Index(o.waitingCalls, w); i >= 0 {
		o.wakeFrom(i + 1)
	}
}

// removeWaitingCall removes w from o.waitingCalls. If w was the first call of its endpoint (isFirst), it wakes the next
// call after w (wakeFrom), which then asks instead of w.
func (o *origin) removeWaitingCall(w *waitingCall) {
	if i := slices.Index(o.waitingCalls, w); i >= 0 {
		first := o.isFirst(w)
		o.waitingCalls = slices.Delete(o.waitingCalls, i, i+1)
		if first {
			o.wakeFrom(i)
		}
	}
}
