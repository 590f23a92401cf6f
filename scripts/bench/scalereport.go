//go:build linux

package main

import "time"

// ours returns the share of all cores that a run's programs used. The kernel and other programs used additional time.
func (r report) ours(l loadResult) float64 {
	return l.rate * l.cpu.sum().Seconds() / float64(max(1, r.machine.cores))
}

func (r report) scaleTable(p func(string, ...any)) {
	if len(r.scale) == 0 {
		return
	}
	p("## More processes\n")
	p("Each worker is a separate process with %d deliveries in flight. All workers and servers share the %d cores of this machine. So the rows", targetInflight, r.machine.cores)
	p("show the cost of sharing and the first exhausted resource, but not the effect of more machines. The cores are exhausted from 90 %% on,")
	p("and Redis' thread, which runs its commands, from 80 %% on. If neither is, deliveries wait for commits or for each other.\n")
	p("| workers | deliveries | per second | × the first | ms of CPU each: worker, Postgres, Redis, agents | cores busy, with these four | one thread of Redis busy |")
	p("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, l := range r.scale {
		p("| %d | %d | %s | %.2f | %s | %.0f %%, %.0f %% | %.0f %% |", l.processes(), l.n, perS(l.rate), l.rate/r.scale[0].rate, l.cpu,
			100*(1-l.idle), 100*r.ours(l), 100*l.rate*l.cpu.redis.Seconds())
	}
	p("")
}

// costed returns the runs whose costs are shown.
func (r report) costed() (runs []loadResult) {
	for _, l := range r.loads {
		if l.queue == realRedis && l.inflight == targetInflight && l.agents >= targetAgents {
			runs = append(runs, l)
		}
	}
	return append(runs, r.scale...)
}

func (r report) costTable(p func(string, ...any)) {
	runs := r.costed()
	if len(runs) == 0 {
		return
	}
	p("## What a delivery takes of Postgres and Redis\n")
	p("The table lists bytes and counts per delivery, from the servers' own counters (`pg_current_wal_insert_lsn`, `pg_stat_database`, `INFO`).")
	p("The measurement of WAL begins after a checkpoint, so it contains the full image of each page that is changed for the first time.")
	p("Redis' commands include those of its scripts. Reads are the reads from its sockets, which approximate round trips. A finished task")
	p("stays in Redis for an hour. –: there were too few tasks to measure.\n")
	p("| workers | agents | WAL to accept | WAL to deliver | commits | on disk | Redis' commands | reads | bytes to and from it | of a waiting task | of a finished task |")
	p("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, l := range runs {
		c := l.costs
		p("| %d | %s | %s | %s | %.2f | %s | %.1f | %.1f | %s | %s | %s |", l.processes(), thousands(l.agents), thousands(int(c.intakeWAL)), thousands(int(c.wal)),
			c.commits, thousands(int(c.disk)), c.commands, c.reads, thousands(int(c.network)), bytesOrNone(c.waiting), bytesOrNone(c.finished))
	}
	p("")
}

// bytesOrNone formats a number of bytes, or "–" if it is unknown.
func bytesOrNone(n float64) string {
	if n <= 0 {
		return "–"
	}
	return thousands(int(n))
}

// rates are the rates that docs/operator/scaling.md discusses.
var rates = []int{100, 1000, 10000, 100000}

// rateTable multiplies one run's results.
func (r report) rateTable(p func(string, ...any)) {
	l := r.slowest(realRedis, targetAgents, targetAgents)
	if l.rate == 0 && len(r.scale) > 0 {
		l = r.scale[0]
	}
	if l.rate == 0 || l.cpu.sum() == 0 {
		return
	}
	const giga = 1e9
	c := l.costs
	p("## What that makes at a rate\n")
	p("The table multiplies the figures of one run (%s). It shows the minimum of cores like these.", l.load)
	p("One separate core is sufficient for %s of the worker's part,", perS(1/l.cpu.worker.Seconds()))
	p("%s of Postgres' and %s of Redis', which has one thread for commands.\n", perS(1/l.cpu.postgres.Seconds()), perS(1/max(l.cpu.redis, time.Microsecond).Seconds()))
	p("| deliveries a second | workers' cores | Postgres' cores | Redis' cores | commits/s | WAL MB/s | Postgres' disk, GB a day | Redis MB/s | Redis, GB of an hour's finished tasks |")
	p("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
	for _, n := range rates {
		f := float64(n)
		p("| %s | %.1f | %.1f | %.1f | %s | %.1f | %.1f | %.1f | %.1f |", thousands(n), f*l.cpu.worker.Seconds(), f*l.cpu.postgres.Seconds(), f*l.cpu.redis.Seconds(),
			thousands(int(f*c.commits)), mb(f*(c.intakeWAL+c.wal)), f*c.disk*24*3600/giga, mb(f*c.network), f*c.finished*3600/giga)
	}
	p("")
}
