package progress

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		drawn := func(want string) {
			t.Helper()
			if out.String() != want {
				t.Errorf("drawn: %q, want %q", out.String(), want)
			}
			out.Reset()
		}
		lines := func(n int) func(float64) string {
			return func(seconds float64) string { return fmt.Sprintf("%d lines, %.0f/s", n, float64(n)/seconds) }
		}
		b := New(&out, time.Second)
		b.w = &out
		b.Draw(0.5, lines(1))
		b.Clear()
		drawn("") // within the first second
		time.Sleep(2 * time.Second)
		b.Draw(0.5, lines(10))
		b.Draw(0.6, lines(11)) // too soon after the previous line
		drawn("\r\x1b[K[" + strings.Repeat("=", 15) + strings.Repeat(" ", 15) + "] 10 lines, 5/s")
		b.Clear()
		b.Clear()
		drawn("\r\x1b[K")
		time.Sleep(time.Second)
		b.Draw(-1, lines(3))
		drawn("\r\x1b[K3 lines, 1/s")
		b = New(&out, 0)
		b.w = &out
		b.Draw(2, func(float64) string { return "at once" })
		drawn("\r\x1b[K[" + strings.Repeat("=", 30) + "] at once")
	})
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if New(file, 0).w != nil {
		t.Error("a file is no terminal")
	}
}
