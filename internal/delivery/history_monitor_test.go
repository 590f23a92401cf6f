package delivery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// monitor records what really happened, independently of the processes, and checks it.
type monitor struct {
	mu       sync.Mutex
	claims   map[int64]*claimed
	holding  map[*process]map[uuid.UUID]*claimed // the claims that each process believes it holds
	made     map[uuid.UUID][]*made
	resolved map[uuid.UUID]time.Time // when a late success ended it
	released map[uuid.UUID]time.Time // when an operator last replayed it
	moving   map[uuid.UUID]bool      // an operator is replaying it: the replay may be committed and not be in released yet
	sleepers map[uuid.UUID]sleeper

	clients map[uuid.UUID]ordered   // the accepted deliveries
	passed  map[uuid.UUID]time.Time // when it no longer delays later deliveries: see delayEnds

	flushes []span // points in time
	counts  map[string]int
	log     []occurrence
	broken  []string      // the violations
	over    chan struct{} // closed with the first violation
	suspect uuid.UUID
}

// claimed is a claim that the store gave.
type claimed struct {
	no                   int64
	id                   uuid.UUID
	attempt, budget      int
	started, at, lease   time.Time // started is by the store's clock
	hold                 bool      // the agent's policy
	unfinished, replayed bool
}

// made is a call that was made.
type made struct {
	p          *process
	with       []*made // the calls of the same batch
	claim      *claimed
	how        manner
	from, to   time.Time // to is zero while the call runs
	until      time.Time // when the process gives up the call
	heard      bool      // the process got the answer
	settled    bool      // the store has the attempt's outcome
	fenced     bool      // the store refused the outcome
	kept, told bool      // Redis has the outcome; Redis had it once
	keptByTime time.Time
}

// occurrence is a line of the history, for human readers.
type occurrence struct {
	at   time.Time
	p    *process
	id   uuid.UUID
	text string
}

func newMonitor() monitor {
	return monitor{claims: map[int64]*claimed{}, holding: map[*process]map[uuid.UUID]*claimed{}, made: map[uuid.UUID][]*made{},
		resolved: map[uuid.UUID]time.Time{}, released: map[uuid.UUID]time.Time{}, moving: map[uuid.UUID]bool{}, sleepers: map[uuid.UUID]sleeper{}, counts: map[string]int{},
		clients: map[uuid.UUID]ordered{}, passed: map[uuid.UUID]time.Time{}, over: make(chan struct{})}
}

func (h *history) count(what string) { h.countN(what, 1) }

func (h *history) countN(what string, n int) {
	if n > 0 {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.counts[what] += n
	}
}

func (h *history) note(p *process, text string) { h.tell(p, uuid.Nil, text) }

func (h *history) tell(p *process, id uuid.UUID, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, occurrence{time.Now(), p, id, text})
}

// violated reports a violation that concerns a delivery.
func (h *history) violated(id uuid.UUID, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.breaks(id, format, args...)
}

func (h *history) breaks(id uuid.UUID, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	h.log = append(h.log, occurrence{time.Now(), nil, id, "VIOLATION: " + text})
	if len(h.broken) == 0 {
		close(h.over)
	}
	h.broken = append(h.broken, fmt.Sprintf("delivery %s: %s", id, text))
	h.suspect = id
}

// story returns what happened to the delivery of the violation, and to all.
func (h *history) story() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	for _, v := range h.broken {
		fmt.Fprintln(&b, v)
	}
	for _, e := range h.log {
		if len(h.broken) > 0 && e.id != uuid.Nil && e.id != h.suspect {
			continue
		}
		who, which := "      ", "    "
		if e.p != nil {
			who = fmt.Sprintf("proc %d", e.p.name)
		}
		if e.id != uuid.Nil {
			which = e.id.String()[:4]
		}
		fmt.Fprintf(&b, "%12s %s %s %s\n", e.at.Sub(h.began).Round(time.Millisecond), who, which, e.text)
	}
	return b.String()
}

// claimed notes that the store gave a claim, whether or not its answer arrived.
func (h *history) claimed(p *process, c *ledger.Claim) {
	if c == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claims[c.No] = &claimed{no: c.No, id: c.ID, attempt: c.Attempt, budget: c.Budget, started: c.StartedAt, at: time.Now(), lease: c.LeaseUntil,
		hold: c.Policy.OnUnknown == policy.OnUnknownHold, unfinished: c.Unfinished, replayed: c.Replay}
	h.log = append(h.log, occurrence{time.Now(), p, c.ID, fmt.Sprintf("claim %d: attempt %d, %d of its budget, until %s, unfinished %v, in doubt %v",
		c.No, c.Attempt, c.Budget, c.LeaseUntil.Sub(h.began).Round(time.Millisecond), c.Unfinished, c.InDoubt)})
	if c.Budget > h.attempts()+1 || c.Budget < 1 { // one more claim looks for the outcome of the last attempt
		h.breaks(c.ID, "attempt %d of a budget of %d", c.Budget, h.attempts())
	}
}

// holds notes that the process got the claim.
func (h *history) holds(p *process, c *ledger.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holding[p] == nil {
		h.holding[p] = map[uuid.UUID]*claimed{}
	}
	h.holding[p][c.ID] = h.claims[c.No]
}

func (h *history) extended(c *ledger.Claim, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claims[c.No].lease = until
	h.counts["lease extended"]++
}

// callsAll notes the calls of all deliveries of a request.
func (h *history) callsAll(p *process, ids []uuid.UUID, about []any, hows []manner, ctx context.Context) []*made {
	all := make([]*made, 0, len(ids))
	for i, id := range ids {
		all = append(all, h.calls(p, id, about[i].(map[string]any)["attempt"].(int), hows[i], ctx, all))
	}
	return all
}

// calls notes that a process begins to write a call, and checks all that must hold then. with are the calls that
// precede it in the same batch.
func (h *history) calls(p *process, id uuid.UUID, attempt int, how manner, ctx context.Context, with []*made) *made {
	no, until, running := h.ground.Held(id)
	now := time.Now()
	deadline, bounded := ctx.Deadline()
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.holding[p][id]
	call := &made{p: p, claim: c, how: how, from: now, until: deadline, with: with}
	h.log = append(h.log, occurrence{now, p, id, fmt.Sprintf("calls attempt %d; the agent %s", attempt, how.name)})
	if c == nil || c.attempt != attempt {
		h.breaks(id, "a call of attempt %d without any claim", attempt)
		return call
	}
	slept := p.sleptAt(c.lease)
	if slept {
		h.counts["call after sleeping past the lease"]++
	}
	if late, ok := h.resolved[id]; ok && late.After(c.at) {
		h.counts["call after another's late success"]++
	} else if !slept {
		switch {
		case !running || no != c.no:
			h.breaks(id, "a call under claim %d, while the row runs: %v, under claim %d", c.no, running, no)
		case !bounded || until.Add(h.tempo.slack).Before(deadline):
			h.breaks(id, "the call may take until %s, the lease ends at %s", deadline.Sub(h.began), until.Sub(h.began))
		}
	}
	h.judgeOrder(call, slept)
	sameBudget := 1
	for _, other := range h.made[id] {
		if other.claim.attempt-other.claim.budget == c.attempt-c.budget {
			sameBudget++
		}
		h.judge(call, other, slept)
	}
	if sameBudget > h.attempts() {
		h.breaks(id, "%d calls within a budget of %d", sameBudget, h.attempts())
	}
	if len(h.made[id]) > 0 {
		h.counts["called again"]++
	}
	h.made[id] = append(h.made[id], call)
	if s, ok := h.sleepers[id]; ok && s.p != p {
		delete(h.sleepers, id)
		close(s.other)
	}
	return call
}

// judge checks a new call against an earlier one of the same delivery.
func (h *history) judge(call, other *made, slept bool) {
	id, c := call.claim.id, call.claim
	otherSlept := other.p.sleptAt(other.claim.lease)
	over := !other.to.IsZero() || h.tempo.slack > 0 && other.until.Before(call.from) // a slow machine is late
	if !over && !other.p.diedBy(call.from) {
		if !slept && !otherSlept {
			h.breaks(id, "two calls at once: of claim %d by process %d since %s, and of claim %d", other.claim.no, other.p.name, other.from.Sub(h.began), c.no)
		}
		h.counts["two calls at once, one had slept"]++
	}
	if slept {
		return
	}
	known := other.heard && other.how.known
	if h.tempo.slack > 0 && !c.unfinished {
		other.settled = true // on a real network, real answers are lost: the table's outcome decides
	}
	if c.hold && other.how.reads && !(known && other.settled) && !h.released[id].After(other.from) {
		h.breaks(id, "asked again against the agent's policy: nobody knows what claim %d led to", other.claim.no)
	}
	switch {
	case !known || other.settled:
	case !other.how.ok && h.released[id].After(other.from): // an operator asked for another call than the failed one
	case other.kept && other.keptByTime.Before(c.at):
		h.breaks(id, "asked again, though Redis has what claim %d led to", other.claim.no)
	case other.p.diedBy(call.from) && h.couldTell(other):
		h.breaks(id, "asked again, though process %d had the time to tell Redis what claim %d led to", other.p.name, other.claim.no)
	case !other.fenced && !other.p.sleptBetween(other.claim.lease, c.at) && !other.p.diedBy(call.from) && !other.p.isCut():
		h.breaks(id, "asked again, though process %d lives and knows what claim %d led to", other.p.name, other.claim.no)
	default:
		h.counts["asked again: only the dead or asleep knew"]++
	}
}

// couldTell reports whether the process, before it died, could reach Redis for long enough to spool the outcome it
// knew.
func (h *history) couldTell(m *made) bool {
	m.p.mu.Lock()
	died := m.p.dead
	m.p.mu.Unlock()
	from := died.Add(-h.tempo.record - 4*h.tempo.pause)
	return !m.told && h.errors <= .01 && m.to.Before(from) && !m.p.sleptBetween(m.to, died) && !h.redis.wasAway(from, died) && !meets(h.flushes, from, died)
}

// ended notes that the process' call is over.
func (h *history) ended(c *made, heard bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.to, c.heard = time.Now(), heard
	what := "heard the answer"
	if !heard {
		what = "hears nothing"
	}
	if c.p.diedBy(c.to) {
		h.counts["killed during a call"]++
	}
	h.log = append(h.log, occurrence{c.to, c.p, c.claim.id, what})
}

// recorded notes that a write of an outcome reached the store and returned err.
func (h *history) recorded(p *process, c *ledger.Claim, attempt int, started time.Time, o ledger.Outcome, late bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	text := fmt.Sprintf("records attempt %d: %s %s", attempt, o.Status, o.Reason)
	if err != nil {
		text += ": " + err.Error()
	}
	h.log = append(h.log, occurrence{time.Now(), p, c.ID, text})
	fenced := errors.Is(err, ledger.ErrFenced)
	if err != nil && !fenced {
		return
	}
	for _, m := range h.made[c.ID] {
		if m.claim.attempt == attempt && m.claim.started.Equal(started) {
			m.settled = m.settled || !fenced || o.Status == outcome.Delivered
			m.fenced = m.fenced || fenced
		}
	}
	if fenced {
		h.counts["late outcome refused"]++
		return
	}
	if end, ok := delayEnds(c, attempt, started, o); ok && (h.passed[c.ID].IsZero() || end.Before(h.passed[c.ID])) {
		h.passed[c.ID] = end
	}
	if late {
		h.counts["late success"]++
		h.resolved[c.ID] = time.Now()
	}
	if o.Status == outcome.Dead && o.Reason != "expired" {
		for _, k := range h.claims {
			if k.id == c.ID && k.attempt == attempt && k.started.Equal(started) && k.budget < h.attempts() {
				h.breaks(c.ID, "it is given up with attempt %d of a budget of %d", k.budget, h.attempts())
			}
		}
	}
	h.counts["recorded "+string(o.Status)]++
	if o.Reason != "" {
		h.counts["reason "+string(o.Reason)]++
	}
}

// kept notes that Redis got an outcome.
func (h *history) kept(p *process, id uuid.UUID, outcome []byte) {
	past, err := openOutcome(h.keys, &ledger.Claim{ID: id, No: math.MaxInt64, Attempt: math.MaxInt}, outcome)
	if err != nil {
		h.violated(id, "what is kept cannot be read: %v", err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts["outcome kept in Redis"]++
	h.log = append(h.log, occurrence{time.Now(), p, id, fmt.Sprintf("keeps in Redis what attempt %d led to: %s %s", past.Attempt, past.Outcome.Status, past.Outcome.Reason)})
	for _, m := range h.made[id] {
		same := m.claim.attempt == past.Attempt && m.claim.started.Equal(past.StartedAt)
		if same && !m.kept {
			m.keptByTime = time.Now()
		}
		m.kept, m.told = same, m.told || same
	}
}

// forgotten notes that Redis lost the outcome of a delivery, or all outcomes if id is Nil.
func (h *history) forgotten(id uuid.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.log = append(h.log, occurrence{time.Now(), nil, id, "Redis forgets"}); id == uuid.Nil {
		h.flushes = append(h.flushes, span{time.Now(), time.Now()})
	}
	for of, calls := range h.made {
		if id == uuid.Nil || of == id {
			for _, m := range calls {
				m.kept = false
			}
		}
	}
}

// setMoving notes that an operator begins or ends the replay of a delivery.
func (h *history) setMoving(id uuid.UUID, moving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moving[id] = moving
}

// replayed notes that an operator replayed deliveries.
func (h *history) replayed(ids []uuid.UUID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		h.released[id] = time.Now()
		h.log = append(h.log, occurrence{time.Now(), nil, id, "the operator replays it"})
	}
}

// invariants checks the conditions that must hold for the tables at all times.
func (h *history) invariants() {
	if h.looks.Add(1)%h.tempo.look != 0 {
		return
	}
	if most := h.ground.MostDispatched(); most > ledger.MaxDispatchedPerAgent {
		h.violated(uuid.Nil, "%d deliveries of one agent are dispatched", most)
	}
}

// verdict checks how each delivery ended.
func (h *history) verdict(rows []ledger.Delivery) {
	for _, d := range rows {
		h.judgeEnd(d)
	}
}

func (h *history) judgeEnd(d ledger.Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	took, unsettled := false, false
	for _, m := range h.made[d.ID] {
		took = took || m.how.ok && m.heard
		if m.how.ok && m.heard && !m.settled && !m.fenced && !m.p.diedBy(h.calm) {
			unsettled = true
		}
		if m.how.ok && m.heard && !m.settled && m.kept && d.Status != outcome.Delivered {
			h.counts["ended otherwise, though Redis knows a success"]++
		}
	}
	h.counts["ended "+string(d.Status)]++
	switch {
	case !d.Status.Final():
		h.breaks(d.ID, "it has not ended: %s %s, attempt %d, task %d, next at %v", d.Status, d.Reason, d.Attempts, d.Dispatch, d.NextAttemptAt)
	case d.Status == outcome.Delivered && !took:
		h.breaks(d.ID, "it is delivered, and nobody heard an agent take it")
	case d.Reason == "expired":
		h.breaks(d.ID, "it expired: for so long nobody took care of it")
	case unsettled:
		h.breaks(d.ID, "a success that a living process knew was never recorded")
	}
	for _, m := range h.made[d.ID] {
		if m.how.ok && m.heard && m.settled && d.Status != outcome.Delivered && !m.fenced && d.Status != outcome.Cancelled {
			h.breaks(d.ID, "a recorded success, and it is %s %s", d.Status, d.Reason)
		}
	}
}
