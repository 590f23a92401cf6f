package logging

import (
	"bufio"
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
)

func TestNew(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		level, format string
		want          []string // messages that are written
	}{
		{"debug", "text", []string{"d", "i", "w", "e"}}, {"info", "text", []string{"i", "w", "e"}}, {"warn", "json", []string{"w", "e"}},
		{"error", "json", []string{"e"}}, {"", "", []string{"i", "w", "e"}}, {"loud", "", []string{"i", "w", "e"}},
	} {
		var b strings.Builder
		log := New(&b, c.level, c.format)
		log.Debug("d")
		log.Info("i")
		log.Warn("w")
		log.Error("e")
		var got []string
		for line := range strings.Lines(b.String()) {
			if c.format == "json" {
				var m map[string]any
				if err := json.Unmarshal([]byte(line), &m); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				got = append(got, m["msg"].(string))
				continue
			}
			_, rest, _ := strings.Cut(line, "msg=")
			got = append(got, strings.TrimSpace(rest))
		}
		if strings.Join(got, "") != strings.Join(c.want, "") {
			t.Errorf("%s %s: wrote %q", c.level, c.format, b.String())
		}
	}
}

// TestOneLine checks in both formats that untrusted text stays within its line, and that secrets are masked.
func TestOneLine(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		var b strings.Builder
		New(&b, "info", format).Info("m", "tag", "a\nlevel=ERROR msg=forged\x1b[31m", "token", secret.New("pw1234"), slog.Group("g", "t", secret.New("pw1234")))
		if got := b.String(); strings.Count(got, "\n") != 1 || strings.Contains(got, "\x1b") || strings.Contains(got, "pw1234") || strings.Count(got, "******") != 2 {
			t.Errorf("%s: %q", format, got)
		}
	}
}

// TestDurations checks that durations are written with units at every position, and that other values are not changed.
func TestDurations(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		var b strings.Builder
		New(&b, "info", format).With("with", 2*time.Minute).Info("m", "took", 1500*time.Millisecond,
			"long", 31*time.Second+123456789, "short", 1234567*time.Nanosecond, "tiny", 42*time.Nanosecond,
			"none", time.Duration(0), "back", -1500*time.Millisecond,
			slog.Group("g", "in", 3*time.Second), "count", 1500, "at", time.Unix(0, 0).UTC())
		got := strings.ReplaceAll(strings.ReplaceAll(b.String(), `"`, ""), ":", "=")
		for _, want := range []string{"with=2m0s", "took=1.5s", "long=31.123s", "short=1.235ms", "tiny=42ns", "none=0s",
			"back=-1.5s", "in=3s", "count=1500", "at=1970-01-01T00=00=00"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s lacks %s", format, got, want)
			}
		}
	}
}

// TestUnreadLog: a log that nothing reads delays its writers by a second in all. When it is read again, it says how many
// lines are missing, and is complete from then on.
func TestUnreadLog(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	log, written := NewBounded(w, "info", "json"), 0
	for ; written < 100; written++ { // a pipe has 64 KiB
		log.Info("unread", "text", strings.Repeat("x", 2*writtenAtOnce)) // the last one is cut
	}
	var isMissing atomic.Bool
	complete := make(chan int)
	go func() {
		counted := 0 // lines that were read, or are missing
		for lines := bufio.NewReader(r); ; counted++ {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				complete <- counted
				return
			}
			var m struct{ Lines int }
			if err := json.Unmarshal(line, &m); err != nil {
				counted-- // the line that was cut is one of those that are missing
			}
			if counted += max(m.Lines-1, 0); bytes.Contains(line, []byte("are missing")) {
				isMissing.Store(true)
			}
		}
	}()
	for ; !isMissing.Load(); written++ {
		log.Info("again")
	}
	log.Info("long", "text", strings.Repeat("x", 3*writtenAtOnce))
	_ = w.Close()
	if n := <-complete; n != written+1 {
		t.Errorf("%d of %d lines were read or counted as missing", n, written+1)
	}
}
