//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/trial"
)

// shares is processor time by who spent it: what stands in the way when all cores are busy.
type shares struct{ worker, postgres, redis, agents time.Duration }

func (s shares) minus(o shares) shares {
	return shares{s.worker - o.worker, s.postgres - o.postgres, s.redis - o.redis, s.agents - o.agents}
}

// each is a share of n.
func (s shares) each(n int) shares {
	d := time.Duration(n)
	return shares{s.worker / d, s.postgres / d, s.redis / d, s.agents / d}
}

func (s shares) String() string {
	f := func(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond)) }
	return strings.Join([]string{f(s.worker), f(s.postgres), f(s.redis), f(s.agents)}, ", ")
}

// cpu reads what each has spent so far.
func (b *bench) cpu(ctx context.Context, w *trial.Worker) (s shares, err error) {
	text, err := w.Metrics(ctx)
	if err != nil {
		return s, err
	}
	seconds, err := metric(text, "process_cpu_seconds_total")
	if err != nil {
		return s, err
	}
	s.worker = time.Duration(seconds * float64(time.Second))
	if s.postgres, err = b.postgresCPU(); err != nil {
		return s, err
	}
	info, err := b.site.Redis.Client().Info(ctx, "cpu").Result()
	if err != nil {
		return s, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(infoField(info, name), 64)
		if err != nil {
			return s, fmt.Errorf("INFO cpu of Redis: %w", err)
		}
		s.redis += time.Duration(seconds * float64(time.Second))
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return s, err
	}
	s.agents = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	return s, nil
}

// postgresCPU sums the postmaster, the backends that live, and those that have ended.
func (b *bench) postgresCPU() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(b.data, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	postmaster, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return 0, err
	}
	p, err := statOf(postmaster)
	if err != nil {
		return 0, err
	}
	sum := p.own + p.children
	found, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range found {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // the pattern has digits only
		if c, err := statOf(pid); err == nil && c.parent == postmaster {
			sum += c.own + c.children
		}
	}
	return sum, nil
}

// procStat is what /proc/PID/stat tells (proc(5)).
type procStat struct {
	parent        int
	own, children time.Duration
}

// tick is the unit of /proc: 100 a second on every Linux that Go runs on.
const tick = 10 * time.Millisecond

func statOf(pid int) (s procStat, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	return parseStat(string(text))
}

func parseStat(text string) (s procStat, err error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name before it may hold anything
	if len(fields) < 15 {
		return s, fmt.Errorf("%q is not what proc(5) says", text)
	}
	number := func(i int) int64 {
		n, e := strconv.ParseInt(fields[i], 10, 64)
		if e != nil {
			err = e
		}
		return n
	}
	s.parent = int(number(1))
	s.own = time.Duration(number(11)+number(12)) * tick
	s.children = time.Duration(number(13)+number(14)) * tick
	return s, err
}
