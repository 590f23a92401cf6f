package delivery

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/google/uuid"
)

var quiet = slog.New(slog.DiscardHandler)

// storm causes faults one after another, and concurrently.
func (h *history) storm() {
	d := h.dice("storm", "")
	mix := weather
	switch h.planted { // the faults that these protections guard against are rare
	case noGrace:
		mix = []mischief{powerCut}
	case noFence:
		mix = []mischief{trapped, slept}
	}
	var all sync.WaitGroup
	for range d.IntN(h.tempo.storms + 1) {
		h.lasts(time.Duration((.5 + 12*d.Float64()) * float64(h.tempo.unit)))
		position := d.IntN(len(h.listProcesses()))
		long := time.Duration(d.Float64() * 90 * float64(h.tempo.unit))
		do, seed := mix[d.IntN(len(mix))], d.Uint64()
		all.Go(func() { do(h, seed, position, long) })
	}
	all.Wait()
	h.lasts(time.Duration(20 * d.Float64() * float64(h.tempo.unit)))
}

// lasts waits d by the history's own clock, or until the first violation, because nothing after it is of interest.
func (h *history) lasts(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.over:
	}
}

// mischief is a fault: it affects the process in a position, or a server, for a while.
type mischief func(h *history, seed uint64, position int, long time.Duration)

var weather = []mischief{killed, stopped, slept, cutOff, trapped, trapped, trapped, trapped,
	outageOf("Postgres down", postgresOf, down), outageOf("Postgres frozen", postgresOf, frozen),
	outageOf("Redis down", redisOf, down), outageOf("Redis frozen", redisOf, frozen),
	flushed, both, powerCut}

func outageOf(what string, server func(*history) *health, state outage) mischief {
	return func(h *history, _ uint64, _ int, long time.Duration) { h.away(what, server(h), state, long) }
}

func postgresOf(h *history) *health { return &h.postgres }
func redisOf(h *history) *health    { return &h.redis.health }

func killed(h *history, _ uint64, position int, long time.Duration) {
	if p := h.listProcesses()[position]; p.leaves() {
		h.count("killed")
		p.kill()
		h.lasts(long / 3)
		h.launch(position)
	}
}

func stopped(h *history, _ uint64, position int, _ time.Duration) {
	if p := h.listProcesses()[position]; p.leaves() {
		h.count("stopped in order")
		p.stop()
		h.launch(position)
	}
}

func slept(h *history, _ uint64, position int, long time.Duration) {
	p := h.listProcesses()[position]
	p.freeze()
	h.count("process frozen")
	h.lasts(long)
	p.resume()
}

// trapped makes a process die, or freeze for longer than its lease, at the worst moment.
func trapped(h *history, seed uint64, position int, long time.Duration) {
	p := h.listProcesses()[position]
	sprung := make(chan uuid.UUID, 2)
	dies, point := seed%2 == 0, points[seed/2%uint64(len(points))]
	p.trap(point, func(id uuid.UUID) {
		if dies {
			p.kill()
		} else {
			p.freeze()
		}
		sprung <- id
	})
	patience := time.NewTimer(60 * h.tempo.unit)
	defer patience.Stop()
	var id uuid.UUID
	select {
	case <-patience.C:
		p.trap(point, nil) // it does not get there
		return
	case id = <-sprung:
	}
	if !dies {
		h.oversleep(p, id, long)
	} else if p.leaves() {
		h.lasts(long / 3)
		h.launch(position)
	}
}

// doubts is called when a process has claimed a delivery whose outcome Redis has. In some histories Redis then goes
// down.
func (h *history) doubts() {
	if h.silence.CompareAndSwap(true, false) && h.stormy.Load() {
		h.late.Go(func() { h.away("Redis does not tell", &h.redis.health, down, h.tempo.recall+20*h.tempo.unit) })
	}
}

// oversleep resumes a process after its lease, or just when another process calls for the same delivery.
func (h *history) oversleep(p *process, id uuid.UUID, long time.Duration) {
	other := make(chan struct{})
	h.mu.Lock()
	h.sleepers[id] = sleeper{p, other}
	h.mu.Unlock()
	limit := time.NewTimer(h.tempo.lease + 2*long)
	defer limit.Stop()
	select {
	case <-limit.C:
	case <-other:
		h.lasts(long / 90 * 3)
	}
	p.resume()
}

// sleeper is a process that is frozen while it runs a delivery. other is closed when another process calls for it.
type sleeper struct {
	p     *process
	other chan struct{}
}

func cutOff(h *history, _ uint64, position int, long time.Duration) {
	p := h.listProcesses()[position]
	h.count("process without Postgres")
	p.cut(true)
	h.lasts(long)
	p.cut(false)
}

func (h *history) away(what string, server *health, state outage, long time.Duration) {
	h.begins(what, server, state)
	h.lasts(long)
	h.ends(what, server, state)
}

func (h *history) begins(what string, server *health, state outage) {
	h.count(what)
	h.note(nil, what)
	server.set(state)
}

func (h *history) ends(what string, server *health, state outage) {
	if server == &h.postgres && state == down {
		h.ground.Restart()
	}
	h.note(nil, what+" no more")
	server.set(up)
}

func flushed(h *history, seed uint64, _ int, long time.Duration) {
	h.count("Redis emptied")
	if seed%2 == 0 {
		h.redis.set(down)
		h.note(nil, "Redis is down")
		h.lasts(long / 3)
	}
	h.redis.flush()
	h.forgotten(uuid.Nil)
	h.redis.set(up)
}

// both stops Redis and Postgres, Postgres for longer.
func both(h *history, seed uint64, _ int, long time.Duration) {
	state := []outage{down, frozen}[seed%2]
	h.begins("Redis away with Postgres", &h.redis.health, state)
	h.begins("Postgres away with Redis", &h.postgres, state)
	h.lasts(long / 3)
	h.ends("Redis away with Postgres", &h.redis.health, state)
	h.lasts(long / 5)
	h.ends("Postgres away with Redis", &h.postgres, state)
}

// powerCut stops both for longer than a lease, and restarts both at the same time. No process could record or spool an
// outcome.
func powerCut(h *history, _ uint64, _ int, long time.Duration) {
	h.begins("power cut", &h.redis.health, down)
	h.begins("Postgres without power", &h.postgres, down)
	h.lasts(h.tempo.lease + long/3)
	h.ends("Postgres without power", &h.postgres, down)
	h.ends("power cut", &h.redis.health, down)
}

// leaves reports whether the caller is the first that wants to end this process.
func (p *process) leaves() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.leaving
	p.leaving = true
	return !was
}

// operate replays and cancels deliveries during the storm, as an operator.
func (h *history) operate(storm context.Context) {
	d := h.dice("operator", "")
	for {
		pause := time.NewTimer(time.Duration((5 + 30*d.Float64()) * float64(h.tempo.unit)))
		select {
		case <-pause.C:
		case <-storm.Done():
			pause.Stop()
			return
		}
		if state, _ := h.postgres.is(); state != up {
			continue
		}
		_, held := h.ground.Open()
		for _, id := range held {
			if d.Float64() < .3 && h.replays[id] < 2 {
				h.release(id)
			}
		}
		h.meddle(d)
	}
}

// meddle replays or cancels one delivery.
func (h *history) meddle(d *rand.Rand) {
	ids := h.accepted()
	if len(ids) == 0 {
		return
	}
	ctx := context.Background()
	id := ids[d.IntN(len(ids))]
	row, err := h.ground.Delivery(ctx, id)
	if err != nil {
		return // not accepted yet
	}
	x := d.Float64()
	switch row.Status {
	case outcome.Dead, outcome.Rejected, outcome.Waiting:
		if x < .5 && h.replays[id] < 2 {
			h.release(id)
		}
	case outcome.Queued:
		if x < .1 {
			if moved, _, _, err := h.ground.Cancel(ctx, []uuid.UUID{id}, false); err == nil && moved > 0 {
				h.count("cancelled")
			}
		}
	}
}
