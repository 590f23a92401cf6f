//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
)

// shares is processor time by program. It shows which program limits the rate if all cores are busy.
type shares struct{ worker, postgres, redis, agents time.Duration }

// readIdle returns the idle time since boot, summed over all cores.
func readIdle() time.Duration {
	all := script.Must(script.Must(procfs.NewDefaultFS()).Stat()).CPUTotal
	return seconds(all.Idle + all.Iowait)
}

func (s shares) minus(o shares) shares {
	return shares{s.worker - o.worker, s.postgres - o.postgres, s.redis - o.redis, s.agents - o.agents}
}

// sum returns the total time.
func (s shares) sum() time.Duration { return s.worker + s.postgres + s.redis + s.agents }

// each returns the time per delivery, for n deliveries.
func (s shares) each(n int) shares {
	d := time.Duration(n)
	return shares{s.worker / d, s.postgres / d, s.redis / d, s.agents / d}
}

func (s shares) String() string {
	f := func(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }
	return strings.Join([]string{f(s.worker), f(s.postgres), f(s.redis), f(s.agents)}, ", ")
}

// readCPU reads the processor time of each program so far.
func (b *bench) readCPU(ctx context.Context, ws []*trial.Worker) (s shares) {
	for _, w := range ws {
		s.worker += seconds(script.Must(metric(script.Must(w.Metrics(ctx)), "process_cpu_seconds_total")))
	}
	s.postgres = readServerCPU(script.Must(b.postgres.PID()))
	info := b.site.Redis.Client().InfoMap(ctx, "cpu")
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		s.redis += seconds(script.Must(strconv.ParseFloat(info.Item("CPU", name), 64)))
	}
	var own syscall.Rusage
	script.Check(syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	s.agents = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	return s
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// readServerCPU returns the time of a postmaster, of its running backends, and of those that ended.
func readServerCPU(postmaster int) (sum time.Duration) {
	for _, p := range script.Must(procfs.AllProcs()) {
		if s, err := p.Stat(); err == nil && (s.PID == postmaster || s.PPID == postmaster) { // otherwise it has just ended
			sum += time.Duration(int(s.UTime+s.STime)+s.CUTime+s.CSTime) * tick
		}
	}
	return sum
}

// tick is the time unit of /proc: 100 per second on every Linux that Go supports.
const tick = 10 * time.Millisecond
