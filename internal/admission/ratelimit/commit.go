package ratelimit

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/admission/versioned"
)

const (
	// maxSteps bounds the steps that are committed together.
	maxSteps = 64
	// maxTries bounds the tries of a commit. Each failed try means that another worker's commit succeeded. When 32
	// workers on two cores called one origin 500 times a second, a commit needed three tries on average, and one
	// needed 100.
	maxTries = 200
)

// step is one question to the rules: a change of the state of an origin and one of its endpoints. It may run several
// times, each time on the state that is then the latest. The last run counts.
type step struct {
	endpoint *endpoint
	run      func(m *originState, e *circuit, now int64)
	done     chan struct{} // closed after the last run
}

// takeStep runs a step and returns after its last run. While the limits are shared, that is the run whose result Redis
// has stored (commitTogether). Otherwise the step changes this process' state only.
//
// A commit may need several requests to Redis. No context of a call ends it, because the limiter must learn of each
// permit that it acquires. The caller does not hold mu.
func (l *Limiter) takeStep(e *endpoint, run func(m *originState, e *circuit, now int64)) {
	l.mu.Lock()
	o := e.origin
	if !o.committing && l.countsAlone(o) {
		l.runAlone(o, []*step{{endpoint: e, run: run}})
		l.mu.Unlock()
		return
	}
	s := &step{endpoint: e, run: run, done: make(chan struct{})}
	o.steps = append(o.steps, s)
	if !o.committing {
		o.committing = true
		l.tasks.Add(1)
		go l.commitSteps(o)
	}
	l.mu.Unlock()
	<-s.done
}

// commitSteps commits the steps at an origin until it has no further steps. So an origin has one commit at a time.
// Steps that arrive during a commit are in the next one.
func (l *Limiter) commitSteps(o *origin) {
	defer l.tasks.Done()
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(o.steps) > 0 {
		steps := o.steps[:min(len(o.steps), maxSteps)]
		o.steps = o.steps[len(steps):]
		l.commitTogether(o, steps)
		for _, s := range steps {
			close(s.done)
		}
	}
	o.steps, o.committing = nil, false
}

// countsAlone reports whether this process counts alone at an origin: during an outage, while there is no other worker,
// after Close, and if the origin is evicted. An evicted origin has no permits, but this process may have a new one with
// the same key, whose permits a commit of the evicted one would delete in Redis (adoptOrigin). The caller holds mu.
func (l *Limiter) countsAlone(o *origin) bool {
	return l.outage.local || l.alone || l.closed || o.endpoints == 0
}

// runAlone runs the steps on this process' own state. The caller holds mu.
func (l *Limiter) runAlone(o *origin, steps []*step) {
	for _, s := range steps {
		s.run(&o.originState, &s.endpoint.circuit, l.now())
		s.endpoint.changedAlone = true
	}
}

// commitChanges commits the states that this process has changed alone. Without it, other workers would learn of them
// only when this process gets a further call to the endpoint. A permit or a probe that has ended since would count for
// them until PermitTTL. Evicted endpoints are left out.
func (l *Limiter) commitChanges() {
	l.mu.Lock()
	var changed []*endpoint
	for el := l.lru.Front(); el != nil; el = el.Next() {
		if e := el.Value.(*endpoint); e.changedAlone {
			changed = append(changed, e)
		}
	}
	l.mu.Unlock()
	for _, e := range changed {
		l.takeStep(e, func(*originState, *circuit, int64) {})
	}
}

// commitTogether runs the steps on copies of the states that this process knows, and replaces the states in Redis with
// the results. If another worker has changed a state since, it takes over the changed states, and tries again. After
// maxTries it runs the steps on the states that it took over last, with the permits of all workers. Redis learns of the
// permits with the next commit. The caller holds mu, which is unlocked during each request.
func (l *Limiter) commitTogether(o *origin, steps []*step) {
	for range maxTries {
		if l.countsAlone(o) {
			l.runAlone(o, steps)
			return
		}
		state, circuits := o.joinPermits(), map[*endpoint]*circuit{}
		for _, s := range steps {
			if circuits[s.endpoint] == nil {
				c := s.endpoint.circuit
				circuits[s.endpoint] = &c
			}
			s.run(&state, circuits[s.endpoint], l.now())
		}
		endpoints := slices.Collect(maps.Keys(circuits))
		answer, err := l.replaceStates(o, &state, endpoints, circuits)
		if err != nil {
			l.beginOutage(err)
			l.runAlone(o, steps)
			return
		}
		if answer.Replaced {
			l.setState(o, state)
			for _, e := range endpoints {
				e.circuit, e.changedAlone = *circuits[e], false
			}
			l.adoptTime(answer.Time)
			return
		}
		l.adoptTime(answer.Time)
		l.adoptOrigin(o, answer.Before[0])
		for i, e := range endpoints {
			e.adoptCircuit(answer.Before[1+i])
		}
	}
	o.originState = o.joinPermits()
	l.runAlone(o, steps)
	l.setState(o, o.originState)
}

// replaceStates replaces the states of an origin and its endpoints in Redis. If their versions there are not those that
// this process knows, it replaces none. The caller holds mu, which is unlocked during the request.
func (l *Limiter) replaceStates(o *origin, state *originState, endpoints []*endpoint, circuits map[*endpoint]*circuit,
) (versioned.Answer, error) {
	all := make([]versioned.Replacement, 0, 1+len(endpoints))
	add := func(key, old string, state any) error {
		if !l.timed {
			old = versioned.ReadOnly // the states have times of this machine's clock, so the first answer is only read
		}
		value, err := versioned.New(state)
		all = append(all, versioned.Replacement{Key: key, Old: old, New: value})
		return err
	}
	if err := add(o.key, o.version, state); err != nil {
		return versioned.Answer{}, err
	}
	for _, e := range endpoints {
		if err := add(endpointKey(o.key, e.id), e.version, circuits[e]); err != nil {
			return versioned.Answer{}, err
		}
	}
	ttl := l.rules.keepFor(max(0, state.TAT-l.now()))
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.life), l.timeout)
	defer cancel()
	answer, err := versioned.Replace(ctx, l.redis, ttl, all...)
	l.mu.Lock()
	if err != nil {
		return answer, err
	}
	if answer.Replaced {
		o.version = all[0].New.Version
		for i, e := range endpoints {
			e.version = all[1+i].New.Version
		}
	}
	return answer, nil
}

// keepFor returns the TTL of the keys of an origin whose theoretical arrival time is ahead µs in the future. A key must
// exist until each time in its state has passed, and at least for a window of the breaker.
func (r *rules) keepFor(ahead int64) time.Duration {
	keep := buckets*r.bucket + r.openFor + r.hold + r.maxWait + ahead
	return time.Duration(keep)*time.Microsecond + time.Minute
}

// joinPermits returns a copy of the origin's state with the permits of all processes.
func (o *origin) joinPermits() originState {
	all := o.originState
	all.Waiting = slices.Clone(o.Waiting)
	all.Permits = make(map[string]int64, len(o.Permits)+len(o.others))
	maps.Copy(all.Permits, o.others)
	maps.Copy(all.Permits, o.Permits)
	return all
}

// setState sets the origin's state to all, which has the permits of all processes.
func (l *Limiter) setState(o *origin, all originState) {
	o.originState, o.others = all, map[string]int64{}
	for token, until := range all.Permits {
		if !l.isOwn(token) {
			o.others[token] = until
			delete(o.Permits, token)
		}
	}
}

// adoptOrigin takes over an origin's state from Redis, except for this process' own permits, which this process knows
// better. If Redis has lost the state, the known one stays, without the permits of other processes. These processes
// store them again, except for released ones.
func (l *Limiter) adoptOrigin(o *origin, value versioned.Value) {
	o.version = value.Version
	var state originState
	if !value.Read(&state) {
		o.others = nil
		return
	}
	own := o.Permits
	l.setState(o, state)
	o.Permits = own
}

// adoptCircuit takes over an endpoint's state from Redis. If Redis has lost it, the known one stays.
func (e *endpoint) adoptCircuit(value versioned.Value) {
	e.version = value.Version
	c := circuit{id: e.id}
	if value.Read(&c) {
		e.circuit = c
	}
}

// isOwn reports whether this process acquired the permit with this token (permitToken).
func (l *Limiter) isOwn(token string) bool {
	_, name, _ := strings.Cut(token, " ")
	return strings.HasPrefix(name, l.process+" ")
}
