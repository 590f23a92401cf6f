package logging

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// keep returns a logger that writes JSON, and a function that returns its lines so far as "LEVEL message".
func keep(level slog.Level) (*slog.Logger, func() []string) {
	var b strings.Builder
	return slog.New(slog.NewJSONHandler(&b, &slog.HandlerOptions{Level: level})), func() (lines []string) {
		for line := range strings.Lines(b.String()) {
			var m struct{ Level, Msg, Last string }
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				panic(err)
			}
			lines = append(lines, strings.TrimSpace(m.Level+" "+m.Msg+" "+m.Last))
		}
		return lines
	}
}

var errAway = errors.New("connection refused")

// TestOutage checks the lines that are logged about a service that becomes unavailable and returns. Times are in
// seconds.
func TestOutage(t *testing.T) {
	t.Parallel()
	const (
		begins  = "WARN Redis is away."
		ends    = "WARN Redis answers again after "
		failing = "WARN Redis answers, but some requests fail; they are tried again. "
	)
	type step struct {
		at    float64
		probe error  // result of a probe that began a second ago; not used by reports
		line  string // text of a report
		sign  bool   // the report is not a failure
	}
	up := func(at float64) step { return step{at: at} }
	down := func(at float64) step { return step{at: at, probe: errAway} }
	fails := func(at float64) step { return step{at: at, line: fmt.Sprintf("lost at %v", at)} }
	for name, c := range map[string]struct {
		steps []step
		want  []string
	}{
		"all is well": {[]step{up(1), up(6), up(11)}, nil},
		"one outage": {
			[]step{up(1), down(6), down(9), up(37), up(38), up(40), up(45)},
			[]string{begins, ends + "32s."}},
		"a short one": {
			[]step{down(1), up(1.5), up(4.5)},
			[]string{begins, ends + "1.5s."}},
		"failures that it explains": {
			[]step{up(1), fails(2), fails(2.1), down(3), fails(4), up(5), fails(6), up(8), fails(9), fails(37), up(50), up(90)},
			[]string{begins, ends + "3s."}},
		"it comes and goes": {
			[]step{down(1), up(2), down(3), up(4), up(5), down(6), up(7), up(8), up(9), up(10)},
			[]string{begins, ends + "7s."}},
		"again later": {
			[]step{down(1), up(2), up(5), down(6), up(7), up(10)},
			[]string{begins, ends + "2s.", begins, ends + "2s."}},
		"failures that nothing explains": {
			[]step{up(1), fails(2), fails(3), up(5), up(11.9), up(12)},
			[]string{failing + "lost at 3"}},
		"at most one line of such in a minute": {
			[]step{fails(1), up(11), fails(12), fails(13), up(30), up(70), up(71), up(90)},
			[]string{failing + "lost at 1", failing + "lost at 13"}},
		"failures long after an outage": {
			[]step{down(1), up(2), up(5), fails(36), up(46)},
			[]string{begins, ends + "2s.", failing + "lost at 36"}},
		"that it is slow is no failure": {
			[]step{up(1), {at: 2, line: "slow", sign: true}, up(3), up(13), up(80)},
			nil},
		"an outage right after what it explains": {
			[]step{fails(1), up(2), down(10), up(11), up(14), up(80)},
			[]string{begins, ends + "2s."}},
	} {
		log, said := keep(slog.LevelDebug)
		o := NewOutage(OutageConfig{Service: Redis, Begins: "Redis is away.", Logger: log})
		start := time.Now()
		at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
		for _, s := range c.steps {
			if s.line != "" {
				o.reportLine(at(s.at), s.line, !s.sign)
				continue
			}
			o.observeProbe(at(s.at-1), at(s.at), s.probe)
		}
		if got := said(); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestOutageRuns checks that Run probes at once, probes again when a line reports a failure, passes on the result of
// every probe, and at its end logs the failures that no outage explains.
func TestOutageRuns(t *testing.T) {
	t.Parallel()
	log, said := keep(slog.LevelInfo)
	answers, probed := make(chan error), make(chan error)
	o := NewOutage(OutageConfig{Service: Postgres, Begins: "Postgres is away.", Logger: log,
		Probe:  func(context.Context) error { return <-answers },
		Probed: func(err error) { probed <- err }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan bool)
	go func() { o.Run(ctx); close(done) }()
	answers <- nil
	if err := <-probed; err != nil {
		t.Error(err)
	}
	slog.New(Handler(log.Handler(), o)).Warn("not recorded", About(Postgres), "error", errAway)
	answers <- nil // the second probe does not wait for the calm interval
	<-probed
	cancel()
	<-done
	want := "WARN Postgres answers, but some requests fail; they are tried again. " +
		"not recorded: connection refused"
	if got := said(); len(got) != 1 || got[0] != want {
		t.Errorf("%q", got)
	}
}

func TestHandler(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		level    slog.Level
		want     string
		failures int
	}{
		{slog.LevelDebug, "DEBUG one;DEBUG two;DEBUG three;DEBUG four;INFO other;WARN elsewhere", 2},
		{slog.LevelInfo, "INFO other;WARN elsewhere", 2},
		{slog.LevelError, "", 1},
	} {
		log, said := keep(c.level)
		o := NewOutage(OutageConfig{Service: Redis, Logger: log})
		l := slog.New(Handler(log.Handler(), o))
		l.Error("one", "error", errAway, About(Redis))
		l.With("from", "asynq", About(Redis)).Warn("two")
		l.WithGroup("g").Info("three", About(Redis))
		l.Debug("four", About(Redis))
		l.Info("other", "error", nil)
		l.Warn("elsewhere", About(Postgres)) // this Outage does not watch Postgres
		if got := strings.Join(said(), ";"); got != c.want {
			t.Errorf("%s: %s", c.level, got)
		}
		if o.failures.count != c.failures {
			t.Errorf("%s: %d failures are counted, want %d", c.level, o.failures.count, c.failures)
		}
	}
}

// TestReportIsBounded checks that the stored text of a reported line is bounded.
func TestReportIsBounded(t *testing.T) {
	t.Parallel()
	log, _ := keep(slog.LevelInfo)
	o := NewOutage(OutageConfig{Service: Redis, Logger: log})
	slog.New(Handler(log.Handler(), o)).Warn("x", About(Redis), "error", errors.New(strings.Repeat("long ", 1000)))
	if n := len(o.failures.last); n > maxReport {
		t.Errorf("%d bytes", n)
	}
}
