//go:build linux

package main

import (
	"context"
	"fmt"
)

// processes are the measured numbers of workers that share one Postgres and one Redis.
var processes = []int{1, 2, 4}

// measureScale measures how Herald scales. A row that fails is listed in the report, because a program may be
// missing.
func (b *bench) measureScale(ctx context.Context, r *report) error {
	base := load{queue: realRedis, inflight: targetInflight, agents: targetAgents, n: max(b.n/2, 1), workers: 1}
	var rows []load
	for _, workers := range processes {
		l := base
		l.workers = workers
		rows = append(rows, l)
	}
	cluster, standby := base, base
	cluster.queue, standby.standby = redisCluster, true
	for _, l := range append(rows, cluster, standby) {
		if !b.matches(l) {
			continue
		}
		res, err := b.scaled(ctx, l)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			say("  not measured: %v", err)
			r.fail(fmt.Sprintf("%s: %v", l, err))
			continue
		}
		r.scale = append(r.scale, res)
	}
	return nil
}

// scaled makes a run with the servers that it needs.
func (b *bench) scaled(ctx context.Context, l load) (res loadResult, err error) {
	run := func() (err error) {
		res, err = b.load(ctx, l)
		return err
	}
	switch {
	case l.queue == redisCluster:
		err = b.withCluster(ctx, run)
	case l.standby:
		err = b.withStandby(ctx, run)
	default:
		err = run()
	}
	return res, err
}
