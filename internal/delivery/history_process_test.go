package delivery

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/google/uuid"
)

var errKilled = errors.New("this process was killed")

// process is one worker, with an executor, a runner, maintenance and an asynq server of its own. All its effects pass
// through test doubles, which block while it is frozen and fail once it is dead.
type process struct {
	h    *history
	name int

	ctx context.Context // ends with the process
	end context.CancelFunc

	mu     sync.Mutex
	dead   time.Time     // zero: alive
	thaw   chan struct{} // nil: it runs; closed when it resumes
	slept  []span
	cutOff bool // from Postgres, while other processes reach it
	onEnd  []func()

	leaving bool                       // it is being stopped or killed
	traps   map[string]func(uuid.UUID) // what to do when it next reaches a point

	runner     *Runner
	reconciler *maintenance.Reconciler
	retention  *maintenance.Retention
	server     *server
	wg         sync.WaitGroup
}

// span is a period. A zero end means that it has not ended.
type span struct{ from, to time.Time }

// newProcess returns a worker that is not running yet.
func (h *history) newProcess(name int) *process {
	p := &process{h: h, name: name}
	p.ctx, p.end = context.WithCancel(context.Background())
	redis := &connection{p: p, r: h.redis}
	dispatcher := must(dispatch.New(redis, quiet))
	books := &books{p: p, base: h.ground}
	now := func() time.Time {
		_ = p.alive()
		return time.Now()
	}
	var members MemberLedger
	if h.batches {
		members = books
	}
	executor := must(NewExecutor(Config{Ledger: books, Members: members, Chain: func(uint64) (event.Chain, bool) { return nil, true }, Verify: chain.VerifyOff,
		Resolver: p, Fetcher: p, Caller: p, Keys: h.keys, Dispatcher: dispatcher, Spool: &safe{redis, h}, Admission: h.limits(p),
		Schedule: must(outcome.NewSchedule(h.tempo.waits)), CallTimeout: h.tempo.call, Lease: h.tempo.lease, LeaseMargin: h.tempo.margin,
		RecordTimeout: h.tempo.record, RecordPause: h.tempo.pause, SpoolTimeout: h.tempo.recall, Metrics: h.metrics, Logger: quiet, Now: now,
		Random: func() float64 { return h.dice("jitter", strconv.Itoa(name)).Float64() }}))
	intake := must(intake.New(intake.Config{Ledger: books, Dispatcher: dispatcher, Sealer: h.keys, Logger: quiet}))
	p.runner = must(NewRunner(executor, intake, h.tempo.slots))
	p.reconciler = must(maintenance.NewReconciler(maintenance.ReconcilerConfig{Ledger: books, Dispatcher: dispatcher,
		Attempts: len(h.tempo.waits) + 1, Logger: quiet, Now: now, Chains: []uint64{8453}, Interval: h.tempo.interval,
		Late: h.tempo.late, Grace: h.grace()}))
	p.retention = must(maintenance.NewRetention(maintenance.RetentionConfig{Ledger: books, OldData: books, Logger: quiet, Now: now,
		Expiry: h.tempo.expiry, Interval: h.tempo.interval}))
	p.server = newServer(p)
	return p
}

func (p *process) start() {
	p.h.note(p, "starts")
	p.wg.Go(func() {
		// Processes look at different times, so that the seed decides their order.
		if p.pause(p.ctx, p.h.some("start", strconv.Itoa(p.name), p.h.tempo.interval)) == nil {
			p.wg.Go(func() { p.retention.Run(p.ctx) })
			p.reconciler.Run(p.ctx)
		}
	})
	p.server.start()
}

// alive waits while the process is frozen. It returns an error if the process is dead.
func (p *process) alive() error {
	for {
		p.mu.Lock()
		dead, thaw := !p.dead.IsZero(), p.thaw
		p.mu.Unlock()
		switch {
		case dead:
			return errKilled
		case thaw == nil:
			return nil
		}
		select {
		case <-thaw:
		case <-p.ctx.Done():
		}
	}
}

// kill is kill -9: later actions of its goroutines have no effect.
func (p *process) kill() {
	p.mu.Lock()
	if p.dead.IsZero() {
		p.dead = time.Now()
		if p.thaw != nil {
			close(p.thaw)
			p.thaw = nil
			p.slept[len(p.slept)-1].to = p.dead
		}
	}
	p.mu.Unlock()
	p.h.note(p, "is dead")
	p.runner.stop(errKilled)
	p.end()
}

// bury waits for the goroutines of a dead process.
func (p *process) bury() {
	p.wg.Wait()
	for _, end := range p.onEnd {
		end()
	}
}

// freeze is SIGSTOP, resume SIGCONT.
func (p *process) freeze() {
	p.h.note(p, "freezes")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead.IsZero() && p.thaw == nil {
		p.thaw = make(chan struct{})
		p.slept = append(p.slept, span{from: time.Now()})
	}
}

func (p *process) resume() {
	p.h.note(p, "goes on")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.thaw != nil {
		close(p.thaw)
		p.thaw = nil
		p.slept[len(p.slept)-1].to = time.Now()
	}
}

// stop is SIGTERM, in the order of the service: it stops taking tasks, waits for running ones, then ends the rest.
func (p *process) stop() {
	p.h.note(p, "is told to stop")
	p.server.shutdown(p.h.tempo.call + p.h.tempo.margin)
	last, cancel := context.WithTimeout(p.ctx, p.h.tempo.margin)
	p.runner.Wait(last)
	cancel()
	p.kill()
}

// sleptAt reports whether the process was frozen at t.
func (p *process) sleptAt(t time.Time) bool { return p.sleptBetween(t, t) }

// sleptBetween reports whether the process was frozen at some time between from and to.
func (p *process) sleptBetween(from, to time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return meets(p.slept, from, to)
}

// diedBy reports whether the process was dead at t.
func (p *process) diedBy(t time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead.IsZero() && !p.dead.After(t)
}

// cut disconnects only this process from Postgres, or reconnects it.
func (p *process) cut(off bool) {
	p.h.note(p, map[bool]string{true: "does not reach Postgres", false: "reaches Postgres"}[off])
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutOff = off
}

func (p *process) isCut() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cutOff
}

// points are where traps can be set: the worst moments.
var points = []string{"claimed", "secured", "calling", "heard", "recorded", "kept"}

// trap sets an action for the next time that the process reaches a point; nil: none.
func (p *process) trap(point string, do func(uuid.UUID)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.traps == nil {
		p.traps = map[string]func(uuid.UUID){}
	}
	p.traps[point] = do
}

// at runs the trap of a point, with the delivery at hand.
func (p *process) at(point string, id uuid.UUID) {
	p.mu.Lock()
	do := p.traps[point]
	delete(p.traps, point)
	p.mu.Unlock()
	if do != nil {
		p.h.count("trapped when " + point)
		p.h.note(p, "trapped when "+point)
		do(id)
	}
}

// request sends a request to a server and waits for the answer, for patience if the server is frozen. The server may run
// late when it resumes, after the caller gave up.
func (p *process) request(ctx context.Context, name, op, key string, patience time.Duration, late func(), effect func() error) error {
	server := map[string]*health{"Postgres": &p.h.postgres, "Redis": &p.h.redis.health}[name]
	if err := p.alive(); err != nil {
		return err
	}
	f := p.h.fault(strings.ToLower(name)+" "+op, key)
	if err := p.pause(ctx, f.before); err != nil {
		return err
	}
	state, thaw := server.is()
	switch {
	case state == down, name == "Postgres" && p.isCut():
		return errNoAnswer
	case state == frozen:
		waits, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		select {
		case <-thaw:
		case <-waits.Done():
			if f.late {
				p.h.late.Go(func() { <-thaw; late() })
			}
			return waits.Err()
		case <-p.ctx.Done():
			return errKilled
		}
		if err := p.alive(); err != nil {
			return err
		}
	}
	if f.fails {
		return errNoAnswer
	}
	err := effect()
	if late := p.pause(ctx, f.after); late != nil {
		return late
	}
	if state, _ := server.is(); state != up || f.lost {
		p.h.count("answer of " + name + " lost")
		return errNoAnswer
	}
	return err
}

// pause waits d, or until the context or the process ends. The interrupted action then has no effect.
func (p *process) pause(ctx context.Context, d time.Duration) error {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-p.ctx.Done():
		}
	}
	if err := p.alive(); err != nil {
		return err
	}
	return ctx.Err()
}
