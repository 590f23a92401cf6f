package trial

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestForeignEndsWithItsChildren: if a foreign program is stopped or exits by itself, its children end too. Stopping it
// twice is no error.
func TestForeignEndsWithItsChildren(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]string{"told": "wait", "by itself": "read go; exit 3"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, child, in := startForeign(t, then)
			if then != "wait" {
				if _, err := in.WriteString("go\n"); err != nil {
					t.Fatal(err)
				}
				<-p.Done()
				var exit *exec.ExitError
				if err := p.Wait(t.Context()); !errors.As(err, &exit) || exit.ExitCode() != 3 {
					t.Errorf("its own end: %v", err)
				}
			}
			for range 2 {
				if err := p.End(); err != nil {
					t.Error(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := Until(ctx, time.Millisecond, "the child to end", func() (bool, error) {
				_, err := child.WriteString("still there?\n")
				return errors.Is(err, syscall.EPIPE), nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// startForeign starts a shell that starts a child and runs then. It returns when the child reads from the file child.
// The shell reads in.
func startForeign(t *testing.T, then string) (p *Process, child, in *os.File) {
	t.Helper()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Skip(err)
	}
	stdin, in, err := os.Pipe()
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = in.Close() })
	p, err = Program{Name: "parent", Path: sh, Args: []string{"-c", `cat "$1" >/dev/null & ` + then, "sh", fifo}, Env: os.Environ(),
		Log: filepath.Join(dir, "log"), In: stdin}.Start()
	_ = stdin.Close()
	heraldtest.Must(t, err)
	if child, err = os.OpenFile(fifo, os.O_WRONLY, 0); err != nil { // waits for the child to read
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Close() })
	return p, child, in
}
