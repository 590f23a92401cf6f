package delivery

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

var quiet = slog.New(slog.DiscardHandler)

// storm lets things go wrong one after another, and at the same time.
func (h *history) storm() {
	d := h.dice("storm", "")
	mix := weather
	switch h.planted { // what these guard against is rare
	case noGrace:
		mix = []func(*history, uint64, int, time.Duration) func(){powerCut}
	case noFence:
		mix = []func(*history, uint64, int, time.Duration) func(){trapped, slept}
	}
	var all sync.WaitGroup
	for range d.IntN(h.tempo.storms + 1) {
		h.lasts(time.Duration((.5 + 12*d.Float64()) * float64(h.tempo.unit)))
		position := d.IntN(len(h.listProcesses()))
		long := time.Duration(d.Float64() * 90 * float64(h.tempo.unit))
		all.Go(mix[d.IntN(len(mix))](h, d.Uint64(), position, long))
	}
	all.Wait()
	h.lasts(time.Duration(20 * d.Float64() * float64(h.tempo.unit)))
}

// lasts lets something last for d of the history's own clock, or until the history is broken: after that nothing more is learnt.
func (h *history) lasts(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-h.over:
	}
}

// weather are the things that go wrong: with the process in a position, or with a server, for a while.
var weather = []func(h *history, seed uint64, position int, long time.Duration) func(){
	killed, stopped, slept, cutOff, trapped, trapped, trapped, trapped,
	func(h *history, _ uint64, _ int, long time.Duration) func() {
		return h.away("Postgres down", &h.postgres, down, long)
	},
	func(h *history, _ uint64, _ int, long time.Duration) func() {
		return h.away("Postgres frozen", &h.postgres, frozen, long)
	},
	func(h *history, _ uint64, _ int, long time.Duration) func() {
		return h.away("Redis down", &h.redis.health, down, long)
	},
	func(h *history, _ uint64, _ int, long time.Duration) func() {
		return h.away("Redis frozen", &h.redis.health, frozen, long)
	},
	flushed, both, powerCut,
}

func killed(h *history, _ uint64, position int, long time.Duration) func() {
	return func() {
		p := h.listProcesses()[position]
		if p.leaves() {
			h.count("killed")
			p.kill()
			h.lasts(long / 3)
			h.launch(position)
		}
	}
}

func stopped(h *history, _ uint64, position int, _ time.Duration) func() {
	return func() {
		p := h.listProcesses()[position]
		if p.leaves() {
			h.count("stopped in order")
			p.stop()
			h.launch(position)
		}
	}
}

func slept(h *history, _ uint64, position int, long time.Duration) func() {
	return func() {
		p := h.listProcesses()[position]
		p.freeze()
		h.count("process frozen")
		h.lasts(long)
		p.resume()
	}
}

// trapped has a process die or freeze at the worst moment, freeze for longer than its lease.
func trapped(h *history, seed uint64, position int, long time.Duration) func() {
	return func() {
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
			p.trap(point, nil) // it does not come there
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
}

// doubts is called when a process has claimed a delivery of which Redis knows an outcome; in some histories Redis goes away then.
func (h *history) doubts() {
	if h.silence.CompareAndSwap(true, false) && h.stormy.Load() {
		h.late.Go(h.away("Redis does not tell", &h.redis.health, down, h.tempo.recall+20*h.tempo.unit))
	}
}

// oversleep wakes a process after its lease, or just when another one calls for the same delivery.
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

// sleeper is a process that sleeps over a delivery, and who wants to hear that another one calls for it.
type sleeper struct {
	p     *process
	other chan struct{}
}

func cutOff(h *history, _ uint64, position int, long time.Duration) func() {
	return func() {
		p := h.listProcesses()[position]
		h.count("process without Postgres")
		p.cut(true)
		h.lasts(long)
		p.cut(false)
	}
}

func (h *history) away(what string, server *health, state outage, long time.Duration) func() {
	return func() {
		h.begins(what, server, state)
		h.lasts(long)
		h.ends(what, server, state)
	}
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

func flushed(h *history, seed uint64, _ int, long time.Duration) func() {
	return func() {
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
}

// both are away, Postgres for longer.
func both(h *history, seed uint64, _ int, long time.Duration) func() {
	return func() {
		state := []outage{down, frozen}[seed%2]
		h.begins("Redis away with Postgres", &h.redis.health, state)
		h.begins("Postgres away with Redis", &h.postgres, state)
		h.lasts(long / 3)
		h.ends("Redis away with Postgres", &h.redis.health, state)
		h.lasts(long / 5)
		h.ends("Postgres away with Redis", &h.postgres, state)
	}
}

// powerCut takes both away for longer than a lease, and both come back at once: whoever knows something has told nobody.
func powerCut(h *history, _ uint64, _ int, long time.Duration) func() {
	return func() {
		h.begins("power cut", &h.redis.health, down)
		h.begins("Postgres without power", &h.postgres, down)
		h.lasts(h.tempo.lease + long/3)
		h.ends("Postgres without power", &h.postgres, down)
		h.ends("power cut", &h.redis.health, down)
	}
}

// leaves tells one of several who would end this process that it is the first.
func (p *process) leaves() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.leaving
	p.leaving = true
	return !was
}

// operate is an operator who replays and cancels while the storm goes on.
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

// meddle picks one delivery.
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
	case store.Dead, store.Rejected, store.Waiting:
		if x < .5 && h.replays[id] < 2 {
			h.release(id)
		}
	case store.Queued:
		if x < .1 {
			if moved, _, _, err := h.ground.Cancel(ctx, []uuid.UUID{id}, false); err == nil && moved > 0 {
				h.count("cancelled")
			}
		}
	}
}
