package operator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/agentherald/herald/internal/embedded"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
)

// services looks at Postgres and Redis: the configured ones, or those of the worker that runs here.
func (d *doctor) services(ctx context.Context) {
	database, redis := d.Settings.DatabaseURL, d.Settings.RedisURL
	if database.IsZero() || redis.IsZero() {
		run, ok := d.embedded()
		if ok && database.IsZero() {
			database = secret.New(run.DatabaseURL)
		}
		if ok && redis.IsZero() {
			redis = secret.New(run.RedisURL)
		}
		if !ok {
			d.programs(ctx)
		}
	}
	if !database.IsZero() {
		d.postgres(ctx, database)
	}
	if !redis.IsZero() {
		d.redis(ctx, redis, d.Settings.RedisURL.IsZero())
	}
}

// embedded finds the worker that runs services of its own on the data folder.
func (d *doctor) embedded() (embedded.RunFile, bool) {
	dir := d.Backend.DataDir()
	run, err := embedded.ReadRunFile(dir)
	var stale *embedded.StaleRunFileError
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &stale):
		lacks := "an embedded Postgres and Redis"
		if !d.Settings.DatabaseURL.IsZero() {
			lacks = "an embedded Redis"
		}
		d.add("embedded", nil, fmt.Sprintf("No worker is running on %s. Starting one would launch %s there.", dir,
			lacks))
		return run, false
	case err != nil:
		d.add("embedded", err, "")
		return run, false
	}
	d.run = run
	d.add("embedded", nil, fmt.Sprintf("a worker (process %d) runs on %s, web UI http://%s/monitor/", run.PID, dir,
		run.Listen))
	return run, true
}

func (d *doctor) postgres(ctx context.Context, url secret.Secret) {
	st, err := store.Open(store.Config{URL: url, MaxConns: 2})
	if err != nil {
		d.add("postgres", err, "")
		return
	}
	defer st.Close()
	if err := d.within(ctx, st.Ping); err != nil {
		d.add("postgres", err, "")
		return
	}
	d.add("postgres", nil, "answers")
	var pending int
	err = d.within(ctx, func(ctx context.Context) error {
		all, err := store.Migrations(ctx, url)
		for _, m := range all {
			if m.AppliedAt.IsZero() {
				pending++
			}
		}
		return err
	})
	if err == nil && pending > 0 {
		err = fmt.Errorf("%d are pending: run `worker migrate`", pending)
	}
	d.add("migrations", err, "all applied")
	if err == nil {
		d.tokens(ctx, st)
		d.stuck(ctx, st)
	}
}

// stuck counts what is held or overdue, by reason, with the command that shows it.
func (d *doctor) stuck(ctx context.Context, st *store.Store) {
	var found []store.Stuck
	err := d.within(ctx, func(ctx context.Context) (err error) {
		found, err = st.ListStuck(ctx)
		return err
	})
	if err != nil {
		d.add("deliveries", err, "")
		return
	}
	for _, s := range found {
		line := "worker delivery list --status " + string(s.Status)
		if s.Reason != "" {
			line += " --reason " + s.Reason
		}
		if s.Status == store.Held {
			d.warn("deliveries", fmt.Sprintf("%d held, %s: `%s`, and `worker delivery show ID` says what to do",
				s.Count, s.Reason, line))
			continue
		}
		why := strings.TrimSpace(string(s.Status) + " " + s.Reason)
		d.warn("deliveries", fmt.Sprintf("%d overdue for more than a minute, %s: no worker takes them; see the worker's log, and `%s`", s.Count, why, line))
	}
	if len(found) == 0 {
		d.add("deliveries", nil, "none is held or overdue")
	}
}

func (d *doctor) redis(ctx context.Context, url secret.Secret, embeddedOne bool) {
	q, err := queue.Open(queue.Config{URL: url, Logger: d.Logger})
	if err != nil {
		d.add("redis", err, "")
		return
	}
	defer q.Close()
	err = d.within(ctx, q.Ping)
	if err == nil && !embeddedOne {
		err = d.within(ctx, q.CheckServer)
	}
	d.add("redis", err, "answers")
	if err == nil && !embeddedOne {
		d.appendOnly(ctx, q)
	}
}

// appendOnly looks whether Redis keeps tasks over a restart. Deliveries are not lost without: the worker dispatches
// them again.
func (d *doctor) appendOnly(ctx context.Context, q *queue.Queue) {
	var state string
	err := d.within(ctx, func(ctx context.Context) (err error) {
		state, err = q.AppendOnly(ctx)
		return err
	})
	switch {
	case err != nil:
		d.warn("redis", err.Error())
	case state == "no":
		d.warn("redis", "appendonly is no: a restart of Redis loses the tasks in it, and they are late by minutes until the worker has dispatched them again. "+
			"Set appendonly yes")
	}
}

// programs looks for those that a worker would run, without fetching them.
func (d *doctor) programs(ctx context.Context) {
	var p embedded.Programs
	_ = d.within(ctx, func(ctx context.Context) error {
		p = embedded.FindPrograms(ctx, d.Backend.DataDir(), d.Settings.CacheDir)
		return nil
	})
	d.judgePrograms(p)
}

// judgePrograms judges what was found: what a start makes up for is a warning.
func (d *doctor) judgePrograms(p embedded.Programs) {
	var none *embedded.NoBinariesError
	switch {
	case !d.Settings.DatabaseURL.IsZero():
	case errors.As(p.NoPostgres, &none):
		d.warn("programs", p.NoPostgres.Error()+". A start tries to fetch it; `worker embedded fetch` does that now")
	default:
		d.add("programs", p.NoPostgres, p.Postgres)
	}
	switch {
	case !d.Settings.RedisURL.IsZero():
	case errors.Is(p.NoRedis, embedded.ErrNoRedis):
		d.warn("programs", p.NoRedis.Error()+": the queue would run inside the worker (miniredis), which is for small installations. Install redis-server, or set REDIS_URL")
	default:
		d.add("programs", p.NoRedis, p.Redis)
	}
}
