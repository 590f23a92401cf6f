package trial

import (
	"errors"
	"fmt"
	"io"
	"syscall"
)

// Foreign is a third-party program that a trial runs next to Herald: a public MCP server, or a bridge.
type Foreign struct {
	Name string
	Path string
	Args []string
	Env  []string // the whole environment
	Log  string   // the file for its output
	In   io.Reader
}

// Start starts the program in the same way as Herald's own processes. End stops it. If it ends by itself, processes
// that it left in its process group are killed as well (on Linux).
func (f Foreign) Start() (*Process, error) {
	return program{name: f.Name, path: f.Path, args: f.Args, env: f.Env, stdin: f.In, log: f.Log, group: true}.start()
}

// End kills the process and all processes in its process group, and waits until it ended.
func (p *Process) End() error {
	select {
	case <-p.done:
		return nil // its group has ended as well, and another group may have the number now
	default:
	}
	if err := syscall.Kill(-p.PID(), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end %s and what it started: %w", p.name, err)
	}
	<-p.done
	return nil
}
