//go:build linux

package main

import (
	"strings"
	"testing"
	"time"
)

// grown returns the result of a run with that number of workers.
func grown(workers int, rate, idle float64, cpu shares) loadResult {
	return loadResult{load: load{queue: realRedis, inflight: 16, agents: 64, n: 4000, workers: workers}, rate: rate, idle: idle, cpu: cpu}
}

var usual = shares{worker: 400 * time.Microsecond, postgres: 500 * time.Microsecond, redis: 100 * time.Microsecond, agents: 100 * time.Microsecond}

func TestFirstLimit(t *testing.T) {
	t.Parallel()
	fewCores := shares{worker: 40 * time.Microsecond, postgres: 50 * time.Microsecond, redis: 100 * time.Microsecond}
	for want, last := range map[string]loadResult{
		"the cores of this machine. 4 workers have 1.10 × the rate of one. 95 % of them are busy, 80 % with one worker. " +
			"Postgres uses the largest part of the CPU of a delivery, 45 %.": grown(4, 1100, .05, usual),
		"Redis, which runs its commands on one thread. 4 workers have 8.50 × the rate of one. That thread is busy 85 % of the time.": grown(4, 8500, .2, fewCores),
		"neither the cores (50 % busy) nor Redis' thread (11 %): deliveries wait, for commits or for each other. " +
			"4 workers have 1.10 × the rate of one.": grown(4, 1100, .5, usual),
		"nothing yet. 4 workers have 3.90 × the rate of one. The cores are 50 % busy, Redis' thread 39 %.": grown(4, 3900, .5, usual),
	} {
		r := report{scale: []loadResult{grown(1, 1000, .2, usual), grown(2, 1050, .1, usual), last}}
		if got := r.firstLimit(); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
	if got := (report{scale: []loadResult{grown(1, 1000, 0, usual)}}).firstLimit(); got != "" {
		t.Errorf("one row tells nothing of growth: %q", got)
	}
}

func TestCosts(t *testing.T) {
	t.Parallel()
	empty := counters{wal: 100, commits: 10, disk: 1000, commands: 5, reads: 3, network: 7, memory: 1e6}
	accepted := counters{wal: 4000100, commits: 50, disk: 3000, commands: 50, reads: 30, network: 70, memory: 1e6 + 4000*300}
	delivered := counters{wal: 16000100, commits: 2050, disk: 8001000, commands: 80050, reads: 24030, network: 8000070, memory: 1e6 + 4000*450}
	got := costsOf(empty, accepted, delivered, 4000, 4000)
	want := costs{intakeWAL: 1000, wal: 3000, commits: .5, disk: 2000, commands: 20, reads: 6, network: 2000, waiting: 300, finished: 450}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := costsOf(empty, accepted, delivered, 100, 100); got.waiting != 0 || got.finished != 0 {
		t.Errorf("a hundred tasks tell nothing of memory: %+v", got)
	}

	var c counters
	info := map[string]map[string]string{"Stats": {"total_commands_processed": "11", "total_reads_processed": "7", "total_net_input_bytes": "100",
		"total_net_output_bytes": "20"}, "Memory": {"used_memory": "1000", "mem_clients_normal": "200", "mem_aof_buffer": "50"}}
	if err := c.readRedis(info); err != nil {
		t.Error(err)
	}
	if want := (counters{commands: 11, reads: 7, network: 120, memory: 750}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
	if err := c.readRedis(map[string]map[string]string{"Memory": {"used_memory": "1"}}); err == nil {
		t.Error("half an INFO is taken")
	}
}

func TestScalePage(t *testing.T) {
	t.Parallel()
	base := grown(0, 1000, .05, usual)
	base.costs = costs{intakeWAL: 1000, wal: 3000, commits: .5, disk: 2000, commands: 20, reads: 6, network: 2000, waiting: 300, finished: 450}
	r := report{machine: environment{machine: machine{cores: 2}}, loads: []loadResult{base}, scale: []loadResult{grown(1, 1000, .05, usual), grown(2, 900, .1, usual)}}
	text := r.markdown()
	for _, want := range []string{
		"| 1 | 4000 | 1,000/s | 1.00 | 0.40, 0.50, 0.10, 0.10 | 95 %, 55 % | 10 % |", "| 2 | 4000 | 900/s | 0.90 |",
		"| 1 | 64 | 1,000 | 3,000 | 0.50 | 2,000 | 20.0 | 6.0 | 2,000 | 300 | 450 |",
		"One separate core is sufficient for 2,500/s of the worker's part,\n2,000/s of Postgres' and 10,000/s of Redis'",
		"| 10,000 | 4.0 | 5.0 | 1.0 | 5,000 | 40.0 | 1728.0 | 20.0 | 16.2 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
}
