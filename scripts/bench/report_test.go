//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTargets(t *testing.T) {
	t.Parallel()
	at := func(queue string, inflight, agents int, rate, memory float64) loadResult {
		return loadResult{load: load{queue: queue, inflight: inflight, agents: agents, n: 10}, rate: rate, start: vitals{memory: 50e6}, peak: vitals{memory: memory},
			cpu: shares{400 * time.Microsecond, 500 * time.Microsecond, 90 * time.Microsecond, time.Duration(rate) * time.Nanosecond}}
	}
	r := report{
		loads: []loadResult{at(realRedis, 16, 64, 3000, 80e6), at(realRedis, 16, 1000, 2100, 90e6), at(realRedis, 16, 1, 100, 70e6), at(realRedis, 64, 64, 1, 260e6),
			at(miniRedis, 16, 64, 901, 80e6), at(miniRedis, 16, 1000, 899, 80e6)},
		bridge:   bridgeResult{rate: 262.5},
		ceilings: []ceiling{{inflight: 16, tasks: 12000, miniTasks: 3000, calls: 12000, statements: 12000}},
		latency:  latency{n: 500, p50: 20 * time.Millisecond, p99: 60*time.Millisecond + 1, firstMax: time.Second},
	}
	watched := at(realRedis, 16, 64, 2849, 80e6)
	watched.watched = true
	unsorted := at(realRedis, 16, 64, 3093, 80e6) // 3,000 is 96.99 % of it
	unsorted.unsorted = true
	r.loads = append(r.loads, watched, unsorted)
	for i, rate := range []float64{3000, 2849} {
		lifted := at(realRedis, 16, 1000, rate, 80e6)
		lifted.lifted, lifted.n, lifted.trend = true, 99999+i, trend{1000, 1060}
		r.loads = append(r.loads, lifted)
	}
	want := []string{"met, the goal too", met, notMet, met, met, notMeasured, met, notMet, notMet, met, notMet, met, notMeasured, notMeasured, notMet, notMet, notMet}
	for i, got := range r.targets() {
		if got.verdict != want[i] {
			t.Errorf("%s: measured %q: %s", got.what, got.measured, got.verdict)
		}
	}
	for i, want := range []string{"3,000/s (64 agents)", "2,100/s (1,000 agents)", "899/s (1,000 agents)", "0.99 ms (64 agents)",
		"8.0 × (2,100/s against 263/s)"} { // the worst of the runs that count
		if got := r.targets()[i]; got.measured != want {
			t.Errorf("%s: %q, want %q", got.what, got.measured, want)
		}
	}
	if got := r.share(r.loads[1]); got != "52 %" { // 2,100 of 4,000
		t.Errorf("%s", got)
	}
	if got := r.share(r.loads[4]); got != "45 %" { // 901 of 2,000
		t.Errorf("%s", got)
	}
	r.loads[0].rate, r.loads[1].rate, r.loads[len(r.loads)-1].trend.last, r.bridge.rate = 1999, 3500, 1061, 260
	r.loads[1].cpu.redis += 10 * time.Microsecond
	if got := r.targets(); got[0].verdict != notMet || got[1].verdict != "met, the goal too" || got[3].verdict != notMet ||
		got[4].verdict != notMet || got[11].verdict != notMet {
		t.Errorf("%+v", got)
	}
	r.bridge = bridgeResult{why: "no npm"}
	if got := r.targets()[4]; got.verdict != notMeasured || !strings.Contains(r.markdown(), "was not measured here: no npm") {
		t.Errorf("%+v", got)
	}
	// Without a measurement there is no verdict, and a short run gives none about 100,000 deliveries.
	short := r.loads[len(r.loads)-2]
	for i, got := range (report{loads: []loadResult{short}}).targets() {
		if got.verdict == notMeasured != (i != 9 && i != 10) {
			t.Errorf("%s: %s", got.what, got.verdict)
		}
	}
	for _, got := range (report{}).targets() {
		if got.verdict != notMeasured {
			t.Errorf("%s: %s", got.what, got.verdict)
		}
	}
	text := r.markdown()
	for _, want := range []string{"| Redis | 16 | 1000 | 10 | 3,500/s | 88 % |", "| added latency, idle system, p99 | ≤ 60 ms | 60.0 ms | **not met** |"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
}

func TestTrend(t *testing.T) {
	t.Parallel()
	if got := trendOf([]float64{10, 30, 20, 90, 91, 40, 41, 35}); got != (trend{30, 41}) {
		t.Errorf("%+v", got)
	}
	if got := trendOf([]float64{1, 2}); got != (trend{}) {
		t.Errorf("%+v", got)
	}
}

func TestMetric(t *testing.T) {
	t.Parallel()
	const text = "# TYPE go_goroutines gauge\ngo_goroutines 27\nprocess_resident_memory_bytes 5.1e+07\n"
	if v, err := metric(text, "process_resident_memory_bytes"); err != nil || v != 51e6 {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := metric(text, "go_gorout"); err == nil {
		t.Error("a beginning is no name")
	}
}

// TestWriteKeeps: text that was written by hand below the marker stays in the file.
func TestWriteKeeps(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "bench.md")
	if err := write(path, "one\n"); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || string(b) != "one\n\n"+kept+"\n" {
		t.Fatalf("%q, %v", b, err)
	}
	if err := os.WriteFile(path, append(b, "by hand\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := write(path, "two\n"); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(path); err != nil || string(b) != "two\n\n"+kept+"\nby hand\n" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestReadCPU compares the times of this process with its own, and those of the machine with its uptime.
func TestReadCPU(t *testing.T) {
	t.Parallel()
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		t.Fatal(err)
	}
	if got, want := readServerCPU(os.Getpid()), time.Duration(own.Utime.Nano()+own.Stime.Nano()); got < want-2*tick {
		t.Errorf("%s, want %s at least", got, want)
	}
	if readIdle() <= 0 {
		t.Error("no core was ever idle")
	}
}

// TestPickMedian checks that one slow and one fast run decide nothing, and that no repeated call is forgotten.
func TestPickMedian(t *testing.T) {
	t.Parallel()
	got := pickMedian([]loadResult{{rate: 2409, repeats: 1}, {rate: 1982}, {rate: 2067, repeats: 2}})
	if got.rate != 2067 || got.repeats != 3 {
		t.Errorf("rate %v, %d repeated", got.rate, got.repeats)
	}
}
