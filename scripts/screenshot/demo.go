//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"time"
)

// Patterns of lines that the demo prints.
var (
	webUILine   = regexp.MustCompile(`http://127\.0\.0\.1:\d+/monitor/`)
	waitingLine = regexp.MustCompile(`waiting (?:rate_limited|server_error), again in ([0-9.]+m?s)`)
)

// longWait distinguishes the second wait (Retry-After: 15) from the first one (about a second).
const longWait = 8 * time.Second

// stopTimeout bounds the demo's shutdown, in which its worker finishes running calls.
const stopTimeout = 90 * time.Second

// demoRun is a running demo. It prints the demo's output as it arrives.
type demoRun struct {
	cmd   *exec.Cmd
	webUI chan string // the address, sent when the delivery waits
	ended chan struct{}
	err   error // valid after ended is closed
}

func startDemo(ctx context.Context, program string) (*demoRun, error) {
	d := &demoRun{cmd: exec.Command(program, "--listen", "127.0.0.1:0"), webUI: make(chan string, 1), ended: make(chan struct{})}
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // stop passes a Ctrl-C on once
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the demo (make build makes it): %w", err)
	}
	go func() {
		defer close(d.ended)
		address := ""
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Println(lines.Text())
			if found := webUILine.FindString(lines.Text()); found != "" && address == "" {
				address = found
			}
			if m := waitingLine.FindStringSubmatch(lines.Text()); m != nil && address != "" {
				if wait, err := time.ParseDuration(m[1]); err == nil && wait >= longWait {
					select {
					case d.webUI <- address:
					default: // the address was sent already
					}
				}
			}
		}
		d.err = d.cmd.Wait()
	}()
	return d, nil
}

// waiting returns the web UI's address as soon as a delivery waits long enough for a picture.
func (d *demoRun) waiting(ctx context.Context) (string, error) {
	select {
	case address := <-d.webUI:
		return address, nil
	case <-d.ended:
		if d.err == nil {
			return "", errors.New("the demo ended before a delivery waited")
		}
		return "", fmt.Errorf("the demo ended before a delivery waited: %w", d.err)
	case <-ctx.Done():
		return "", fmt.Errorf("wait for the demo's retry: %w", context.Cause(ctx))
	}
}

// stop asks the demo to end, and kills its process group if it does not.
func (d *demoRun) stop() error {
	_ = syscall.Kill(d.cmd.Process.Pid, syscall.SIGTERM) // it may have ended
	select {
	case <-d.ended:
		return nil
	case <-time.After(stopTimeout):
	}
	_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
	<-d.ended
	return errors.New("the demo did not end when asked, and was killed")
}
