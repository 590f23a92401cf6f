package limits

import (
	"container/list"
	"slices"
)

// origin is what this process knows of one: the state machine, which is the truth while Redis is away and goes along
// otherwise, and who waits here for a place. Limits.mu guards it.
type origin struct {
	machine
	key   string
	used  int64     // µs, the last Enter
	users int       // how many are in Enter
	line  []*waiter // longest waiting first; only the first asks
}

// waiter is one delivery in the waiting room.
type waiter struct{ wake chan struct{} } // buffered by one

// find returns the origin, made when it is not known. The caller holds mu.
func (l *Limits) find(key string) *origin {
	now := l.now()
	if e, ok := l.origins[key]; ok {
		l.recent.MoveToFront(e)
		o := e.Value.(*origin)
		o.used = now
		return o
	}
	l.forget(now)
	o := &origin{key: key, used: now}
	l.origins[key] = l.recent.PushFront(o)
	return o
}

// forget makes room for one more origin: the idle ones of the two used longest ago go, and when there are too many, the
// idle one used longest ago, idle for however short a time. Two for each new one: so all that are idle go in the end.
func (l *Limits) forget(now int64) {
	long := buckets*l.rules.bucket + l.rules.openFor
	e := l.recent.Back()
	for range 2 {
		if e == nil {
			return
		}
		previous := e.Prev()
		if o := e.Value.(*origin); now-o.used > long && o.idle(now) {
			l.drop(e)
		}
		e = previous
	}
	// What is in use is bounded by the calls of this process, so this ends soon.
	for e := l.recent.Back(); e != nil && len(l.origins) >= l.most; {
		previous := e.Prev()
		if e.Value.(*origin).idle(now) {
			l.drop(e)
		}
		e = previous
	}
}

func (l *Limits) drop(e *list.Element) {
	delete(l.origins, e.Value.(*origin).key)
	l.recent.Remove(e)
}

func (o *origin) idle(now int64) bool {
	o.purge(now)
	return len(o.places) == 0 && o.users == 0
}

// next lets the first of the line look again.
func (o *origin) next() {
	if len(o.line) > 0 {
		select {
		case o.line[0].wake <- struct{}{}:
		default: // it has been told
		}
	}
}

// quit takes w out of the line, and hands on what it may have been told.
func (o *origin) quit(w *waiter) {
	if i := slices.Index(o.line, w); i >= 0 {
		o.line = slices.Delete(o.line, i, i+1)
		if i == 0 {
			o.next()
		}
	}
}
