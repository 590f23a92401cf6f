package trial

import (
	"errors"
	"fmt"
	"io"
	"syscall"
)

// Foreign is a program of somebody else's that a trial runs beside Herald: a public MCP server, a bridge.
type Foreign struct {
	Name string
	Path string
	Args []string
	Env  []string // all of it
	Log  string   // the file for what it says
	In   io.Reader
	As   *syscall.Credential // the user that it runs as; nil: this process's
}

// Start runs it as Herald's own processes are run. End ends it; when it ends by itself, what it started and left in its process group
// ends too (on Linux).
func (f Foreign) Start() (*Process, error) {
	return program{name: f.Name, path: f.Path, args: f.Args, env: f.Env, stdin: f.In, log: f.Log, group: true, as: f.As}.start()
}

// End kills the process and whatever it started that is still in its process group, and returns when it is gone.
func (p *Process) End() error {
	select {
	case <-p.done:
		return nil // so has its group, whose number may be another's by now
	default:
	}
	if err := syscall.Kill(-p.PID(), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end %s and what it started: %w", p.name, err)
	}
	<-p.done
	return nil
}
