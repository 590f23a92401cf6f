//go:build linux

package main

import (
	"context"
	"errors"
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

// readIdle is how long the cores of this machine had nothing to do since it started, all of them together.
func readIdle() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseIdle(string(text))
}

// parseIdle reads the first line of /proc/stat: user, nice, system, idle, iowait (proc(5)).
func parseIdle(text string) (time.Duration, error) {
	fields := strings.Fields(text)
	if len(fields) < 6 || fields[0] != "cpu" {
		return 0, errors.New("/proc/stat does not begin as proc(5) says")
	}
	idle, err1 := strconv.ParseInt(fields[4], 10, 64)
	waiting, err2 := strconv.ParseInt(fields[5], 10, 64)
	return time.Duration(idle+waiting) * tick, errors.Join(err1, err2)
}

func (s shares) minus(o shares) shares {
	return shares{s.worker - o.worker, s.postgres - o.postgres, s.redis - o.redis, s.agents - o.agents}
}

// sum is the time of all of them.
func (s shares) sum() time.Duration { return s.worker + s.postgres + s.redis + s.agents }

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
func (b *bench) cpu(ctx context.Context, ws []*trial.Worker) (s shares, err error) {
	for _, w := range ws {
		text, err := w.Metrics(ctx)
		if err != nil {
			return s, err
		}
		seconds, err := metric(text, "process_cpu_seconds_total")
		if err != nil {
			return s, err
		}
		s.worker += time.Duration(seconds * float64(time.Second))
	}
	if s.postgres, err = b.postgresCPU(); err != nil {
		return s, err
	}
	for _, node := range b.redis.nodes {
		info, err := node.Info(ctx, "cpu").Result()
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
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return s, err
	}
	s.agents = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	return s, nil
}

// postgresCPU sums the server and its standby, if there is one.
func (b *bench) postgresCPU() (time.Duration, error) {
	postmaster, err := b.postmaster()
	if err != nil {
		return 0, err
	}
	sum, err := serverCPU(postmaster)
	if err != nil || b.standby == nil {
		return sum, err
	}
	standby, err := serverCPU(b.standby.PID())
	return sum + standby, err
}

// postmaster is the process that started Postgres' others.
func (b *bench) postmaster() (pid int, err error) {
	text, err := os.ReadFile(filepath.Join(b.data, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(strings.TrimSpace(first))
}

// serverCPU sums a postmaster, the backends that live, and those that have ended.
func serverCPU(postmaster int) (time.Duration, error) {
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
