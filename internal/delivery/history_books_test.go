package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/google/uuid"
)

// ground is the database of a history: the store, and queries of its tables.
type ground interface {
	storetest.Store

	// Held returns the claim under which a delivery runs, and the end of its lease. running is false if it does not
	// run.
	Held(id uuid.UUID) (no int64, until time.Time, running bool)
	// MostDispatched returns the highest number of queued and running tasks of one agent.
	MostDispatched() int
	// Open returns the number of deliveries that have not ended, and the ids of the held ones.
	Open() (n int, held []uuid.UUID)
	// Restart makes Clock report that Postgres has just started.
	Restart()
}

// books is one process' connection to Postgres. Each call can fail before or after its effect, take time, or find
// Postgres down.
type books struct {
	p    *process
	base ground
}

// do runs one call. single means that Postgres gets it as one message: a frozen Postgres may run it after the caller
// gave up.
func (b *books) do(ctx context.Context, op, key string, single bool, effect func(context.Context) error) error {
	h, late := b.p.h, func() {}
	if single {
		late = func() {
			h.count("frozen Postgres did it later")
			h.note(b.p, "late "+op)
			_ = effect(aftermath{context.Background()})
			h.invariants()
		}
	}
	return b.p.request(ctx, "Postgres", op, key, h.tempo.statement, late, func() error {
		defer h.invariants()
		return effect(ctx)
	})
}

// aftermath is the context of an effect whose caller has gone, so that its result must not be returned.
type aftermath struct{ context.Context }

func nobodyWaits(ctx context.Context) bool {
	_, gone := ctx.(aftermath)
	return gone
}

// ask is do for a call with a result. A late effect has no caller, and its result is dropped.
func ask[T any](ctx context.Context, b *books, op, key string, single bool, effect func(context.Context) (T, error)) (result T, err error) {
	err = b.do(ctx, op, key, single, func(ctx context.Context) error {
		got, err := effect(ctx)
		if err == nil && !nobodyWaits(ctx) {
			result = got
		}
		return err
	})
	if err != nil {
		return *new(T), err // also if only the answer was lost
	}
	return result, nil
}

func (b *books) Accept(ctx context.Context, in []ledger.Intake) (out []ledger.Acceptance, tasks []ledger.Task, err error) {
	out, err = ask(ctx, b, "accept", "", false, func(ctx context.Context) (got []ledger.Acceptance, err error) {
		got, tasks, err = b.base.Accept(ctx, in)
		return got, err
	})
	return out, tasks, err
}

func (b *books) Claim(ctx context.Context, id uuid.UUID, n int, lease time.Duration) (*ledger.Claim, error) {
	c, err := ask(ctx, b, "claim", id.String(), true, func(ctx context.Context) (*ledger.Claim, error) {
		got, err := b.base.Claim(ctx, id, n, lease)
		if got != nil && b.p.h.planted == endlessBudget {
			got.Budget = 1
		}
		if got != nil && b.p.h.planted == noHistory {
			got.Unfinished, got.InDoubt = false, false
		}
		b.p.h.claimed(b.p, got)
		return got, err
	})
	if c != nil {
		b.p.h.holds(b.p, c)
		if b.p.at("claimed", id); c.Unfinished && b.p.h.redis.keeps(id) {
			b.p.h.doubts()
		}
	}
	return c, err
}

func (b *books) Extend(ctx context.Context, c *ledger.Claim, d time.Duration) error {
	return b.do(ctx, "extend", c.ID.String(), true, func(ctx context.Context) error {
		own := *c // a late effect must not change the value that its caller uses
		err := b.base.Extend(ctx, &own, d)
		if err == nil {
			b.p.h.extended(c, own.LeaseUntil)
		}
		return err
	})
}

func (b *books) ClaimMembers(ctx context.Context, leader *ledger.Claim, n int, lease time.Duration) ([]ledger.Member, error) {
	all, err := ask(ctx, b, "claim members", leader.ID.String(), true, func(ctx context.Context) ([]ledger.Member, error) {
		got, err := b.base.ClaimMembers(ctx, leader, n, lease)
		for _, m := range got {
			b.p.h.claimed(b.p, m.Claim)
		}
		return got, err
	})
	for _, m := range all {
		b.p.h.holds(b.p, m.Claim)
		b.p.h.count("claimed for a batch")
	}
	return all, err
}

func (b *books) GiveBack(ctx context.Context, all []ledger.Member) error {
	return b.do(ctx, "give back", all[0].ID.String(), true, func(ctx context.Context) error {
		b.p.h.countN("given back", len(all))
		return b.base.GiveBack(ctx, all)
	})
}

// Hints and Bind are not called in histories, which believe the jobs.
func (b *books) Hints(context.Context, *ledger.Claim) ([]ledger.Hint, error) { return nil, nil }

func (b *books) Bind(context.Context, *ledger.Claim, ledger.Binding) error {
	return errors.New("a history binds no events")
}

func (b *books) Record(ctx context.Context, c *ledger.Claim, o ledger.Outcome) (ledger.Recorded, error) {
	return ask(ctx, b, "record", c.ID.String(), true, func(ctx context.Context) (ledger.Recorded, error) {
		own := *c
		no, _, running := b.base.Held(c.ID)
		if running && b.p.h.planted == noFence {
			own.No = no
		}
		late := false
		if o.Status == outcome.Delivered && (!running || no != c.No) {
			row, err := b.base.Delivery(ctx, c.ID)
			late = err == nil && !row.Status.Final()
		}
		got, err := b.base.Record(ctx, &own, o)
		b.p.h.recorded(b.p, c, c.Attempt, c.StartedAt, o, late && err == nil, err)
		if !nobodyWaits(ctx) {
			b.p.at("recorded", c.ID)
		}
		return got, err
	})
}

func (b *books) Delivery(ctx context.Context, id uuid.UUID) (ledger.Delivery, error) {
	return ask(ctx, b, "read", id.String(), true, func(ctx context.Context) (ledger.Delivery, error) { return b.base.Delivery(ctx, id) })
}

func (b *books) DeliveryByKey(ctx context.Context, key string) (ledger.Delivery, error) {
	return ask(ctx, b, "read", key, true, func(ctx context.Context) (ledger.Delivery, error) { return b.base.DeliveryByKey(ctx, key) })
}

func (b *books) Adopt(ctx context.Context, c *ledger.Claim, past ledger.SpooledOutcome) (ledger.Recorded, error) {
	return ask(ctx, b, "adopt", c.ID.String(), false, func(ctx context.Context) (ledger.Recorded, error) {
		got, err := b.base.Adopt(ctx, c, past)
		b.p.h.recorded(b.p, c, past.Attempt, past.StartedAt, past.Outcome, false, err)
		switch {
		case err == nil:
			b.p.h.count("outcome adopted")
		case errors.Is(err, ledger.ErrStale):
			b.p.h.count("stale outcome found")
		}
		return got, err
	})
}

func (b *books) Lead(ctx context.Context, do func(context.Context) error) (leads bool, err error) {
	if err := b.do(ctx, "lead", "", false, func(context.Context) error { return nil }); err != nil {
		return false, err
	}
	return b.base.Lead(ctx, do)
}

func (b *books) Clock(ctx context.Context) (now, started time.Time, err error) {
	err = b.do(ctx, "clock", "", false, func(ctx context.Context) error {
		now, started, err = b.base.Clock(ctx)
		return err
	})
	return now, started, err
}

func (b *books) ExpireLeases(ctx context.Context, limit, attempts int) (n, dead int, err error) {
	err = b.do(ctx, "expire leases", "", false, func(ctx context.Context) error {
		if b.p.h.planted == hastyLeases {
			b.p.h.skew.Store(int64(b.p.h.tempo.lease))
			defer b.p.h.skew.Store(0)
		}
		n, dead, err = b.base.ExpireLeases(ctx, limit, attempts)
		b.p.h.countN("lease ran out", n)
		return err
	})
	return n, dead, err
}

func (b *books) Expire(ctx context.Context, age time.Duration, limit int) (n int, err error) {
	err = b.do(ctx, "expire", "", false, func(ctx context.Context) error {
		n, err = b.base.Expire(ctx, age, limit)
		b.p.h.countN("expired", n)
		return err
	})
	return n, err
}

// tasks runs a call that dispatches. If its answer is lost, the reconciler replaces the tasks.
func (b *books) tasks(ctx context.Context, op string, effect func(context.Context) ([]ledger.Task, error)) ([]ledger.Task, error) {
	return ask(ctx, b, op, "", false, func(ctx context.Context) ([]ledger.Task, error) {
		tasks, err := effect(ctx)
		b.p.h.countN("dispatched by "+op, len(tasks))
		return tasks, err
	})
}

func (b *books) Release(ctx context.Context, chains []uint64, gateway bool, limit int) ([]ledger.Task, error) {
	return b.tasks(ctx, "release", func(ctx context.Context) ([]ledger.Task, error) { return b.base.Release(ctx, chains, gateway, limit) })
}

func (b *books) Due(ctx context.Context, limit int) (tasks []ledger.Task, more bool, err error) {
	tasks, err = b.tasks(ctx, "due", func(ctx context.Context) (due []ledger.Task, err error) {
		due, more, err = b.base.Due(ctx, limit)
		return due, err
	})
	return tasks, more, err
}

func (b *books) IgnoreOrder(ctx context.Context, limit int) ([]ledger.Task, error) {
	return b.tasks(ctx, "ignore order", func(ctx context.Context) ([]ledger.Task, error) { return b.base.IgnoreOrder(ctx, limit) })
}

func (b *books) Backlog(ctx context.Context, limit int) ([]ledger.Task, error) {
	return b.tasks(ctx, "backlog", func(ctx context.Context) ([]ledger.Task, error) { return b.base.Backlog(ctx, limit) })
}

func (b *books) LostBefore(ctx context.Context, before time.Time, limit int) ([]ledger.Task, error) {
	return b.tasks(ctx, "lost before", func(ctx context.Context) ([]ledger.Task, error) { return b.base.LostBefore(ctx, before, limit) })
}

func (b *books) Overdue(ctx context.Context, late time.Duration, after uuid.UUID, limit int) ([]ledger.Task, error) {
	return b.tasks(ctx, "overdue", func(ctx context.Context) ([]ledger.Task, error) { return b.base.Overdue(ctx, late, after, limit) })
}

func (b *books) Redispatch(ctx context.Context, t ledger.Task) (again ledger.Task, ok bool, err error) {
	again, err = ask(ctx, b, "redispatch", t.ID.String(), true, func(ctx context.Context) (ledger.Task, error) {
		got, moved, err := b.base.Redispatch(ctx, t)
		if moved {
			b.p.h.count("task replaced")
		}
		if !nobodyWaits(ctx) {
			ok = moved
		}
		return got, err
	})
	return again, ok && err == nil, err
}

func (b *books) EnsurePartitions(ctx context.Context, ahead int) (int, error) {
	return 0, b.do(ctx, "partitions", "", false, func(ctx context.Context) error { return nil })
}

func (b *books) DropPartitions(context.Context, time.Duration) (int, error)      { return 0, nil }
func (b *books) DropEvents(context.Context, int) (int, error)                    { return 0, nil }
func (b *books) DropAgentHours(context.Context, time.Duration, int) (int, error) { return 0, nil }
func (b *books) Retain(context.Context, time.Duration, int) (int, error)         { return 0, nil }
