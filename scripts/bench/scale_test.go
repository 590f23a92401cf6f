//go:build linux

package main

import (
	"strings"
	"testing"
	"time"
)

// grown returns the result of a run with that number of workers.
func grown(workers int, rate, idle float64) loadResult {
	return loadResult{load: load{queue: realRedis, inflight: 16, agents: 64, n: 4000, workers: workers}, rate: rate, idle: idle, cpu: usual}
}

var usual = shares{worker: 400 * time.Microsecond, postgres: 500 * time.Microsecond, redis: 100 * time.Microsecond, agents: 100 * time.Microsecond}

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
	base := grown(0, 1000, .05)
	base.costs = costs{intakeWAL: 1000, wal: 3000, commits: .5, disk: 2000, commands: 20, reads: 6, network: 2000, waiting: 300, finished: 450}
	r := report{machine: environment{machine: machine{cores: 2}}, loads: []loadResult{base}, scale: []loadResult{grown(1, 1000, .05), grown(2, 900, .1)}}
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
