package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
)

// needsEmbedded reports whether a worker with these settings runs embedded services on the data folder.
func (d *doctor) needsEmbedded() bool {
	return d.Settings.DatabaseURL.IsZero() || d.Settings.RedisURL.IsZero()
}

// findEmbedded finds the worker that runs embedded services on the data folder. Later checks then check its services.
func (d *doctor) findEmbedded(context.Context) []Finding {
	if !d.needsEmbedded() {
		return nil
	}
	dir := d.Backend.DataDir()
	run, err := embedded.ReadRunFile(dir)
	var stale *embedded.StaleRunFileError
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.As(err, &stale):
		lacks := "an embedded Postgres and Redis"
		if !d.Settings.DatabaseURL.IsZero() {
			lacks = "an embedded Redis"
		}
		return reportOK("No worker is running on %s. Starting one would launch %s there.", dir, lacks)
	case err != nil:
		return reportFailure("%v", err)
	}

	d.run = run
	if d.database.IsZero() {
		d.database = secret.New(run.DatabaseURL)
	}
	if d.redis.IsZero() {
		d.redis = secret.New(run.RedisURL)
	}
	return reportOK("a worker (process %d) runs on %s, web UI http://%s/monitor/", run.PID, dir, run.Listen)
}

// findPrograms searches for the programs that a worker would run. It does not fetch them.
func (d *doctor) findPrograms(ctx context.Context) []Finding {
	if !d.needsEmbedded() || d.run.PID != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return d.judgePrograms(embedded.FindPrograms(ctx, d.Backend.DataDir(), d.Settings.CacheDir))
}

// judgePrograms reports the search's result. A missing program that a start can fetch or replace is a warning.
func (d *doctor) judgePrograms(p embedded.Programs) (findings []Finding) {
	var none *embedded.NoBinariesError
	switch {
	case !d.Settings.DatabaseURL.IsZero():
	case errors.As(p.NoPostgres, &none):
		findings = reportWarning("%v. A start tries to fetch it; `worker embedded fetch` does that now", p.NoPostgres)
	default:
		findings = reportResult(p.NoPostgres, "%s", p.Postgres)
	}
	switch {
	case !d.Settings.RedisURL.IsZero():
		return findings
	case errors.Is(p.NoRedis, embedded.ErrNoRedis):
		return append(findings, reportWarning("%v: the queue would run inside the worker (miniredis), "+
			"which is for small installations. Install redis-server, or set REDIS_URL", p.NoRedis)...)
	}
	return append(findings, reportResult(p.NoRedis, "%s", p.Redis)...)
}

func (d *doctor) checkPostgres(ctx context.Context) []Finding {
	if d.database.IsZero() {
		return nil
	}
	st, err := store.Open(postgres.Config{URL: d.database, LeaderURL: d.Settings.LeaderURL, MaxConns: 2,
		CloseWithin: postgres.CommandClose})
	if err != nil {
		return reportFailure("%v", err)
	}
	if err := try(ctx, st.Ping); err != nil {
		st.Close()
		return reportFailure("%v", err)
	}
	d.store = &operator.Session{Ledger: st, Records: records.New(st), Close: st.Close}
	d.readClock(ctx, "Postgres", func(ctx context.Context) (time.Time, error) {
		now, _, err := st.Clock(ctx)
		return now, err
	})
	if err := cmp.Or(try(ctx, st.CheckWritable), try(ctx, st.CheckPooler)); err != nil {
		return reportFailure("%v", err)
	}
	return reportOK("answers")
}

func (d *doctor) checkMigrations(ctx context.Context) []Finding {
	if d.store == nil {
		return nil
	}
	all, err := ask(ctx, func(ctx context.Context) ([]postgres.Migration, error) {
		if !d.Settings.LeaderURL.IsZero() {
			return postgres.Migrations(ctx, d.Settings.LeaderURL)
		}
		return postgres.Migrations(ctx, d.database)
	})
	pending := 0
	for _, m := range all {
		if m.AppliedAt.IsZero() {
			pending++
		}
	}
	if err == nil && pending > 0 {
		err = fmt.Errorf("%s pending: run `worker migrate`", text.Count(pending, "is", "are"))
	}
	if d.migrated = err == nil; d.migrated {
		err = try(ctx, d.store.Ledger.CheckOwner)
	}
	return reportResult(err, "all applied")
}

// checkRedis checks a configured Redis. Of an embedded Redis it checks only that it answers, because the worker
// controls its configuration.
func (d *doctor) checkRedis(ctx context.Context) []Finding {
	if d.redis.IsZero() {
		return nil
	}
	q, err := queue.Open(queue.Config{URL: d.redis, NoIntake: d.Settings.RefusesRedisJobs(),
		DialOnce: true, Logger: d.Logger})
	if err != nil {
		return reportFailure("%v", err)
	}
	defer q.Close()
	err = try(ctx, q.Ping)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w. Does REDIS_URL begin with rediss:// if Redis uses TLS, and with redis:// if not?", err)
	}
	if err == nil {
		d.readClock(ctx, "Redis", q.Clock)
		lanes, _ := q.Lanes(ctx)
		for _, tasks := range lanes {
			d.tasks += tasks["pending"] + tasks["active"] + tasks["retry"]
		}
	}
	if err != nil || d.Settings.RedisURL.IsZero() {
		return reportResult(err, "answers")
	}
	if err := try(ctx, q.CheckServer); err != nil {
		return reportFailure("%v", err)
	}
	return slices.Concat(reportOK("answers"), checkAppendOnly(ctx, q), checkForeign(q), checkUnread(q),
		d.compareWorkers(ctx, q))
}

// compareWorkers compares the workers that take tasks from this Redis with those that wrote their record into this
// Postgres. A worker writes its record before it takes tasks, and deletes it afterwards. So if Redis has more, another
// Herald uses the same Redis database, unless Postgres was away until now. If Redis has fewer, workers of this Postgres
// use another Redis, unless Redis was away until now, or workers were killed or are just starting.
func (d *doctor) compareWorkers(ctx context.Context, q *queue.Queue) []Finding {
	if !d.migrated {
		return nil
	}
	workers, err := ask(ctx, d.store.Workers)
	if err != nil {
		return reportWarning("%v", err)
	}
	switch readers, err := q.CountReaders(); {
	case err != nil:
		return reportWarning("%v", err)
	case readers > len(workers):
		return reportWarning("%s tasks from this Redis database, but this Postgres has %d: another Herald uses the "+
			"same Redis database, and both delay each other's deliveries. Give each Herald a Redis database of its "+
			"own (REDIS_URL). If Postgres was just away, look again in %s",
			text.Count(readers, "worker takes", "workers take"), len(workers), records.WorkerReports)
	case readers < len(workers):
		return reportWarning("%s this Postgres, but only %d of them can take tasks from this Redis database. Give "+
			"all the same REDIS_URL: otherwise they do not share the limits of calls, and may repeat calls after an "+
			"outage. If a worker was killed or Redis was just away, look again in %s",
			text.Count(len(workers), "worker uses", "workers use"), readers, ledger.WorkerGone)
	}
	return nil
}

// checkForeign warns about tasks of other programs in the queues that Herald reads.
func checkForeign(q *queue.Queue) []Finding {
	found, err := q.ListForeign(job.TaskTypes())
	if err != nil {
		return reportWarning("%v", err)
	}
	if len(found) == 0 {
		return nil
	}
	var names []string
	for _, f := range found {
		names = append(names, fmt.Sprintf("%q in queue %s", f.Type, f.Lane))
	}
	return reportWarning("another program's tasks are in queues that Herald reads, which delays them: %s. "+
		"Give Herald a Redis database of its own; "+
		"if only the queue default is shared, HERALD_REDIS_INTAKE=off leaves it alone",
		text.JoinFirst(names, 10, ", "))
}

// checkUnread warns about jobs in queues that no worker reads.
func checkUnread(q *queue.Queue) (findings []Finding) {
	unread, err := q.ListUnread(job.TaskTypes())
	if err != nil {
		return reportWarning("%v", err)
	}
	for _, u := range unread {
		findings = append(findings,
			reportWarning("%s in queue %q, which no worker reads: put %s into the queue default or first",
				text.Count(u.Jobs, "job is", "jobs are"), u.Name, text.Plural(u.Jobs, "it", "them"))...)
	}
	return findings
}

// checkAppendOnly warns if Redis does not persist tasks. A restart of Redis loses no deliveries then, because the
// worker dispatches them again, but it delays them.
func checkAppendOnly(ctx context.Context, q *queue.Queue) []Finding {
	state, err := ask(ctx, q.AppendOnly)
	switch {
	case err != nil:
		return reportWarning("%v", err)
	case state == "no":
		return reportWarning("appendonly is no: a restart of Redis loses the tasks in it, " +
			"and they are late by minutes until the worker has dispatched them again. Set appendonly yes")
	}
	return nil
}
