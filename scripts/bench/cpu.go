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

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
)

// shares is processor time by program. It shows which program limits the rate if all cores are busy.
type shares struct{ worker, postgres, redis, agents time.Duration }

// readIdle returns the idle time since boot, summed over all cores.
func readIdle() (time.Duration, error) {
	text := script.Must(os.ReadFile("/proc/stat"))
	return parseIdle(string(text))
}

// parseIdle parses the first line of /proc/stat: user, nice, system, idle, iowait (proc(5)).
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
	s.postgres = script.Must(serverCPU(script.Must(b.postgres.PID())))
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

// serverCPU returns the time of a postmaster, of its running backends, and of those that ended.
func serverCPU(postmaster int) (time.Duration, error) {
	p := script.Must(statOf(postmaster))
	sum := p.own + p.children
	found := script.Must(filepath.Glob("/proc/[0-9]*/stat"))
	for _, path := range found {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path))) // the pattern contains only digits
		if c, err := statOf(pid); err == nil && c.parent == postmaster {
			sum += c.own + c.children
		}
	}
	return sum, nil
}

// procStat contains values of /proc/PID/stat (proc(5)).
type procStat struct {
	parent        int
	own, children time.Duration
}

// tick is the time unit of /proc: 100 per second on every Linux that Go supports.
const tick = 10 * time.Millisecond

func statOf(pid int) (s procStat, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	return parseStat(string(text))
}

func parseStat(text string) (s procStat, err error) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the name before it may contain any character
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
