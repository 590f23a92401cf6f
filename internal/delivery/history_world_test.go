package delivery

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/model"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
)

// tempo contains the durations of a history: those of the product and those of its environment.
type tempo struct {
	unit               time.Duration // of faults and their durations
	call, margin       time.Duration
	lease              time.Duration
	waits              []time.Duration
	slots              int // of one process
	interval, late     time.Duration
	grace, expiry      time.Duration
	latency            time.Duration // of a network and a disk
	statement          time.Duration // timeout of a store's statement
	record, pause      time.Duration // one try to record, and the longest pause between two
	recall             time.Duration // how long a claim asks Redis for a known outcome
	asynqLease, beat   time.Duration
	net                time.Duration // asynq's own retry
	whole              time.Duration // asynq's precision
	slack              time.Duration // delay of this machine when it is busy
	patience           time.Duration // until all deliveries must have ended, after the storm
	deliveries, storms int
	look               int64 // check the tables with every look-th call
}

// ceil rounds up to asynq's precision.
func (t tempo) ceil(at time.Time) time.Time {
	if whole := at.Truncate(t.whole); !whole.Equal(at) {
		return whole.Add(t.whole)
	}
	return at
}

// bubble is the tempo for the fake clock, which takes no real time.
var bubble = tempo{unit: time.Second, call: 10 * time.Second, margin: 20 * time.Second, lease: 40 * time.Second,
	waits: []time.Duration{time.Second, 2 * time.Second, 20 * time.Second, 6 * time.Minute, 30 * time.Second}, slots: 4,
	interval: 5 * time.Second, late: 15 * time.Second, grace: time.Minute, expiry: 3 * time.Hour, latency: 4 * time.Millisecond,
	statement: 35 * time.Second, record: 5 * time.Second, pause: 2 * time.Second, recall: 10 * time.Second, asynqLease: 30 * time.Second, beat: 5 * time.Second, net: 5 * time.Second, whole: time.Second,
	patience: time.Hour, deliveries: 50, storms: 40, look: 1}

// fault is a protection that is switched off, so that the property test can show that it notices.
type fault string

const (
	none             fault = ""
	noFence          fault = "the store ignores claim_no"
	hastyLeases      fault = "leases are taken back early"
	forgetfulResults fault = "Redis forgets what it was to keep"
	noHistory        fault = "a claim does not say that an attempt never ended"
	endlessBudget    fault = "attempts are not counted"
	blindReconciler  fault = "the reconciler believes that Redis has every task"
	noGrace          fault = "the reconciler does not wait after Postgres was away"
	noOrder          fault = "the store keeps no order"
)

// history is one world, from the first job to the end of the last delivery.
type history struct {
	monitor
	seed    uint64
	tempo   tempo
	planted fault
	batches bool // agents offer the batch tool
	metrics *Metrics
	keys    *secret.Keyset

	ground   ground
	postgres health
	redis    *redisDouble
	skew     atomic.Int64 // of the store's clock, for a planted fault
	began    time.Time
	calm     time.Time // when the faults end
	stormy   atomic.Bool
	looks    atomic.Int64
	silence  atomic.Bool // Redis goes down when it is asked for a known outcome
	errors   float64     // the share of single calls that fail

	ids      []uuid.UUID
	hopeless map[uuid.UUID]bool
	replays  map[uuid.UUID]int

	procs struct {
		sync.Mutex
		now []*process
		all []*process
	}
	rolls struct {
		sync.Mutex
		n map[string]uint64
	}
	late sync.WaitGroup // requests that frozen servers run when they resume
}

func newHistory(seed uint64, t tempo, planted fault, metrics *Metrics, keys *secret.Keyset) *history {
	h := &history{monitor: newMonitor(), seed: seed, tempo: t, planted: planted, batches: seed%4 == 3, metrics: metrics, keys: keys, began: time.Now(),
		hopeless: map[uuid.UUID]bool{}, replays: map[uuid.UUID]int{}}
	h.rolls.n = map[string]uint64{}
	h.redis = newRedisDouble(h)
	return h
}

// inMemory is the ground that uses the bubble's clock.
type inMemory struct{ *model.Store }

func (h *history) memory() ground {
	s := model.New(func() time.Time { return time.Now().Add(time.Duration(h.skew.Load())) })
	if h.planted != noOrder {
		s.KeepOrder()
	}
	return inMemory{s}
}

func (m inMemory) Open() (n int, held []uuid.UUID) {
	for _, d := range m.All() {
		if !d.Status.Final() {
			n++
		}
		if d.Status == outcome.Held {
			held = append(held, d.ID)
		}
	}
	return n, held
}

// dice returns the seed's random numbers for the nth occurrence of what and key. Concurrent actions do not change them.
func (h *history) dice(what, key string) *rand.Rand {
	h.rolls.Lock()
	site := what + "\x00" + key
	n := h.rolls.n[site]
	h.rolls.n[site]++
	h.rolls.Unlock()
	f := fnv.New64a()
	_, _ = f.Write([]byte(site))
	return rand.New(rand.NewPCG(h.seed, f.Sum64()+n*0x9e3779b97f4a7c15))
}

// some returns a random part of d.
func (h *history) some(what, key string, d time.Duration) time.Duration {
	return time.Duration(h.dice(what, key).Float64() * float64(d))
}

func (h *history) attempts() int { return len(h.tempo.waits) + 1 }

func (h *history) grace() time.Duration {
	if h.planted == noGrace {
		return -1
	}
	return h.tempo.grace
}

// mishap is a fault of one call of a server.
type mishap struct {
	before, after time.Duration
	fails         bool // the call has no effect
	lost          bool // the call has its effect, and its answer is lost
	late          bool // a frozen server runs the call when it resumes
}

func (h *history) fault(op, key string) mishap {
	d := h.dice(op, key)
	rate := h.errors
	if !h.stormy.Load() {
		rate = 0
	}
	m := mishap{fails: d.Float64() < rate, lost: d.Float64() < rate, late: d.Float64() < .5}
	switch op { // the idle calls of the reconciler need no delay: they are most of a history's cost
	case "postgres lead", "postgres clock", "postgres release", "postgres due", "postgres ignore order", "postgres backlog", "postgres overdue":
	default:
		m.before, m.after = time.Duration(d.Float64()*float64(h.tempo.latency)), time.Duration(d.Float64()*float64(h.tempo.latency))
	}
	if d.Float64() < rate/4 {
		m.before = time.Duration(d.Float64() * float64(6*h.tempo.unit))
	}
	return m
}

// run runs the history. Afterwards the monitor contains the result.
func (h *history) run() {
	d := h.dice("world", "")
	h.errors = []float64{0, .01, .05, .15}[d.IntN(4)]
	h.stormy.Store(true)
	h.silence.Store(d.Float64() < .4)
	for i := range 1 + d.IntN(3) {
		h.launch(i)
	}
	storm, over := context.WithCancel(context.Background())
	var around sync.WaitGroup
	around.Go(func() { h.intake(d) })
	around.Go(func() { h.operate(storm) })
	h.storm()
	over()
	around.Wait()
	h.heal()
	h.wait()
	for _, p := range h.everybody() {
		p.kill()
		p.bury()
	}
	h.late.Wait()
	rows := make([]ledger.Delivery, 0, len(h.ids))
	for _, id := range h.ids {
		if row, err := h.ground.Delivery(context.Background(), id); err == nil {
			rows = append(rows, row)
		} else {
			h.violated(id, "it is lost: %v", err)
		}
	}
	h.verdict(rows)
}

// launch starts a process in a position.
func (h *history) launch(position int) {
	p := h.newProcess(position)
	h.procs.Lock()
	for len(h.procs.now) <= position {
		h.procs.now = append(h.procs.now, nil)
	}
	h.procs.now[position] = p
	h.procs.all = append(h.procs.all, p)
	h.procs.Unlock()
	p.start()
}

func (h *history) everybody() []*process {
	h.procs.Lock()
	defer h.procs.Unlock()
	return append([]*process(nil), h.procs.all...)
}

func (h *history) listProcesses() []*process {
	h.procs.Lock()
	defer h.procs.Unlock()
	return append([]*process(nil), h.procs.now...)
}

// intake enqueues the jobs in a few batches, and repeats a batch without an answer. It puts the dispatched tasks into
// Redis, or dies.
func (h *history) intake(d *rand.Rand) {
	outside := h.outsider()
	defer outside.bury()
	defer outside.kill()
	agents := 1 + d.IntN(3)
	for a := range agents {
		if d.Float64() < .35 {
			if err := h.ground.SetPolicy(context.Background(), storetest.Agent(a), policy.Policy{OnUnknown: policy.OnUnknownHold}); err != nil {
				h.violated(uuid.Nil, "%v", err)
			}
		}
	}
	total := 2 + d.IntN(h.tempo.deliveries)
	var ids []uuid.UUID
	var batches [][]ledger.Intake
	for i := range total {
		j := storetest.Feedback(d.IntN(agents), i+1)
		j.ClientAddress[0] = byte(d.IntN(3))
		if d.Float64() < .15 {
			j.FeedbackURI = "ipfs://" + j.ID().String()
		}
		ids = append(ids, j.ID())
		if d.Float64() < .1 {
			h.mu.Lock()
			h.hopeless[j.ID()] = true
			h.mu.Unlock()
		}
		if i == 0 || d.Float64() < .3 {
			batches = append(batches, nil)
		}
		batches[len(batches)-1] = append(batches[len(batches)-1], ledger.Intake{Job: j})
	}
	h.mu.Lock()
	h.ids = ids
	h.mu.Unlock()
	books := &books{p: outside, base: h.ground}
	dispatcher := must(dispatch.New(&connection{p: outside, r: h.redis}, quiet))
	for n, batch := range batches {
		h.knowOrder(n, batch)
		_ = outside.pause(context.Background(), time.Duration(d.Float64()*8*float64(h.tempo.unit)))
		for {
			ctx, cancel := context.WithTimeout(context.Background(), 10*h.tempo.unit)
			_, tasks, err := books.Accept(ctx, batch)
			if err == nil && d.Float64() > .05 {
				dispatcher.Dispatch(ctx, tasks)
			}
			cancel()
			if err == nil {
				break
			}
			_ = outside.pause(context.Background(), h.tempo.unit)
		}
	}
}

// accepted returns the jobs that the intake knows to be accepted.
func (h *history) accepted() []uuid.UUID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ids
}

// outsider returns a process that takes no tasks: a command.
func (h *history) outsider() *process {
	p := &process{h: h, name: 9, runner: &Runner{stop: func(error) {}}}
	p.ctx, p.end = context.WithCancel(context.Background())
	return p
}

// heal ends all faults.
func (h *history) heal() {
	h.postgres.set(up)
	h.redis.set(up)
	h.stormy.Store(false)
	h.calm = time.Now()
	h.note(nil, "from now on all is well")
	for position, p := range h.listProcesses() {
		p.resume()
		p.cut(false)
		if p.diedBy(h.calm) {
			h.launch(position)
		}
	}
}

// wait waits until all deliveries have ended, at most for the patience of the tempo, and releases held ones.
func (h *history) wait() {
	poll := time.NewTicker(h.tempo.interval)
	defer poll.Stop()
	for {
		n, held := h.ground.Open()
		if n == 0 || time.Since(h.calm) > h.tempo.patience {
			break
		}
		for _, id := range held {
			h.release(id)
		}
		<-poll.C
	}
	h.note(nil, fmt.Sprintf("it took %s more", time.Since(h.calm)))
}

// release replays a held delivery, or cancels it after two replays.
func (h *history) release(id uuid.UUID) {
	ctx := context.Background()
	var tasks []ledger.Task
	var err error
	if h.replays[id]++; h.replays[id] <= 2 {
		var moved int
		h.setMoving(id, true)
		defer h.setMoving(id, false)
		if moved, _, tasks, err = h.ground.Replay(ctx, []uuid.UUID{id}, false); moved > 0 {
			h.count("replayed")
			h.replayed([]uuid.UUID{id})
		}
	} else if _, _, _, err = h.ground.Cancel(ctx, []uuid.UUID{id}, false); err == nil {
		h.count("cancelled")
	}
	if err != nil {
		h.violated(id, "the operator's command failed: %v", err)
	}
	if h.dice("operator dies", id.String()).Float64() < .8 {
		if state, _ := h.redis.is(); state == up {
			for _, t := range tasks {
				h.redis.enqueue(dispatch.ToQueue(t))
			}
		}
	}
}
