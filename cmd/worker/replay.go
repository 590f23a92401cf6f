package main

import (
	"context"
	"maps"

	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

type deliveryReplayCmd struct {
	moveFlags
	Force bool `help:"Also what was delivered: the agent is called again. By options only together with --status delivered."`
	Rate  int  `help:"At most so many a second; 0: as fast as it goes." default:"50"`
}

// verb: what was delivered is replayed by filter only when that is exactly what was asked for, and what was cancelled only when it
// is named: somebody did not want it delivered.
func (c *deliveryReplayCmd) verb() verb {
	const onTheWay = "they are on their way"
	v := verb{name: "replay", force: c.Force, done: "queued anew",
		takes: []store.Status{store.Dead, store.Rejected, store.Skipped, store.Held, store.Waiting},
		named: []store.Status{store.Cancelled},
		refuses: map[store.Status]string{store.Queued: onTheWay, store.Running: onTheWay,
			store.Delivered: "with --force they are delivered a second time"}}
	if c.Force && c.Status == string(store.Delivered) {
		v.refuses = maps.Clone(v.refuses)
		delete(v.refuses, store.Delivered)
	}
	return v
}

// forces: what became delivered after a filter chose it as something else must not be delivered twice.
func (c *deliveryReplayCmd) forces(ids []uuid.UUID, f store.Filter) bool {
	return c.Force && (len(ids) > 0 || f.Status == store.Delivered)
}

func (c *deliveryReplayCmd) Run(a *app) error {
	v := c.verb()
	ids, f, err := c.check(v, c.Rate)
	if err != nil {
		return err
	}
	st, err := a.dispatching()
	if err != nil {
		return err
	}
	defer st.close()
	force := c.forces(ids, f)
	v.move = func(ctx context.Context, ids []uuid.UUID) (int, map[uuid.UUID]string, error) {
		moved, left, tasks, err := st.Replay(ctx, ids, force)
		st.dispatch(ctx, tasks)
		return moved, left, err
	}
	return c.run(a, st, v, c.Rate, ids, f)
}

type deliveryCancelCmd struct {
	moveFlags
	Force bool `help:"Also what is running: its call cannot be taken back, only what follows from it."`
	Rate  int  `help:"At most so many a second; 0: as fast as it goes." default:"0"`
}

func (c *deliveryCancelCmd) verb() verb {
	const final = "they have ended already"
	v := verb{name: "cancel", force: c.Force, done: "cancelled",
		takes: []store.Status{store.Queued, store.Waiting, store.Held},
		refuses: map[store.Status]string{store.Delivered: final, store.Skipped: final, store.Rejected: final, store.Dead: final,
			store.Cancelled: final, store.Running: "only with --force: the call cannot be taken back"}}
	if c.Force {
		v.takes = append(v.takes, store.Running)
		delete(v.refuses, store.Running)
	}
	return v
}

func (c *deliveryCancelCmd) Run(a *app) error {
	v := c.verb()
	ids, f, err := c.check(v, c.Rate)
	if err != nil {
		return err
	}
	st, err := a.store()
	if err != nil {
		return err
	}
	defer st.close()
	v.move = func(ctx context.Context, ids []uuid.UUID) (int, map[uuid.UUID]string, error) {
		return st.Cancel(ctx, ids, c.Force)
	}
	return c.run(a, st, v, c.Rate, ids, f)
}
