package ratelimit

import (
	"container/list"
	"slices"
)

// origin is what this process knows of one: the state machine, which is the truth while Redis is away and goes along
// otherwise, and who waits here for a permit. Limiter.mu guards it.
type origin struct {
	originState
	key       string
	endpoints int       // how many are remembered; without any it is forgotten
	line      []*waiter // longest waiting first; of each endpoint only the first asks
	missed    bool      // somebody found no permit here because one was taken while Redis was asked
}

// endpoint is what this process knows of one.
type endpoint struct {
	circuit
	origin *origin
	used   int64 // µs, the last Acquire
	users  int   // how many are in Acquire
}

// waiter is one delivery in the waiting room.
type waiter struct {
	endpoint *endpoint
	wake     chan struct{} // buffered by one
}

// endpointKey is where an endpoint is remembered, here and in Redis.
func endpointKey(originKey, id string) string { return originKey + ":" + id }

// findEndpoint returns the endpoint, made when it is not known. The caller holds mu.
func (l *Limiter) findEndpoint(originKey, id string) *endpoint {
	now := l.now()
	key := endpointKey(originKey, id)
	if el, ok := l.endpoints[key]; ok {
		l.recent.MoveToFront(el)
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
	l.endpoints[key] = l.recent.PushFront(e)
	return e
}

// evictIdle makes room for one more endpoint: the idle ones of the two used longest ago go, and when there are too
// many, the idle one used longest ago, idle for however short a time. Two for each new one: so all that are idle go in
// the end.
func (l *Limiter) evictIdle(now int64) {
	long := buckets*l.rules.bucket + l.rules.openFor
	el := l.recent.Back()
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
	// What is in use is bounded by the calls of this process, so this ends soon.
	for el := l.recent.Back(); el != nil && len(l.endpoints) >= l.maxEndpoints; {
		previous := el.Prev()
		if l.isIdle(el.Value.(*endpoint), now) {
			l.dropEndpoint(el)
		}
		el = previous
	}
}

func (l *Limiter) dropEndpoint(el *list.Element) {
	l.recent.Remove(el)
	e := el.Value.(*endpoint)
	delete(l.endpoints, endpointKey(e.origin.key, e.id))
	if e.origin.endpoints--; e.origin.endpoints == 0 {
		delete(l.origins, e.origin.key)
	}
}

// isIdle: nobody asks for the endpoint, or holds a permit at it.
func (l *Limiter) isIdle(e *endpoint, now int64) bool {
	e.origin.dropExpired(now)
	return e.users == 0 && e.origin.countHeld(&l.rules, now, e.id) == 0
}

// wakeFrom lets the first waiter from position i on look again that is the first of its endpoint.
func (o *origin) wakeFrom(i int) {
	for ; i < len(o.line); i++ {
		if o.isFirst(o.line[i]) {
			select {
			case o.line[i].wake <- struct{}{}:
			default: // it has been told
			}
			return
		}
	}
}

// isFirst says whether w is the longest waiting of its endpoint.
func (o *origin) isFirst(w *waiter) bool {
	for _, other := range o.line {
		if other.endpoint == w.endpoint {
			return other == w
		}
	}
	return false
}

// countWaiters is how many of the line wait for an endpoint.
func (o *origin) countWaiters(e *endpoint) int {
	n := 0
	for _, w := range o.line {
		if w.endpoint == e {
			n++
		}
	}
	return n
}

// countCalls is how many of an endpoint's calls are under way here, and how many of them have been for longer than most.
func (o *origin) countCalls(r *rules, now int64, id string, most int64) (calls, longer int) {
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

// passOn hands what w was told to the next in the line: w could not use it.
func (o *origin) passOn(w *waiter) {
	if i := slices.Index(o.line, w); i >= 0 {
		o.wakeFrom(i + 1)
	}
}

// leaveLine takes w out of the line, and hands on what it may have been told.
func (o *origin) leaveLine(w *waiter) {
	if i := slices.Index(o.line, w); i >= 0 {
		first := o.isFirst(w)
		o.line = slices.Delete(o.line, i, i+1)
		if first {
			o.wakeFrom(i)
		}
	}
}
