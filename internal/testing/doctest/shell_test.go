package doctest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/testing/trial"
)

// commandTime bounds one command on a busy machine.
const commandTime = time.Minute

// driver is the script that the shell runs. Commands arrive on descriptor 3, each terminated by a NUL, and their
// statuses are written to descriptor 4. With VERSION and ATONCE, make runs neither git nor getconf. Exports, sourced files and background jobs of a command remain, as in a
// terminal.
const driver = `
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
make() { VERSION=none ATONCE=1 command make -n -C "$DOCTEST_ROOT" "$@"; }
while IFS= read -r -d '' -u 3 command; do
	eval "$command" </dev/null >"$DOCTEST_OUTPUT" 2>&1 3<&- 4>&-
	echo $? >&4
done
`

// shell is a bash that runs the commands of a page one after the other.
type shell struct {
	output   string // file with the last command's output
	listen   string // where its worker listens; empty: it may not start a worker
	cmd      *exec.Cmd
	commands *os.File
	statuses *os.File
	read     *bufio.Reader
}

func startShell(dir, root, listen string, env []string) (_ *shell, err error) {
	output, err := os.CreateTemp(dir, "output-")
	if err != nil {
		return nil, err
	}
	if err := output.Close(); err != nil {
		return nil, err
	}
	commandsRead, commands, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	statuses, statusesWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, commandsRead.Close(), commands.Close())
	}
	s := &shell{output: output.Name(), listen: listen, commands: commands, statuses: statuses, read: bufio.NewReader(statuses)}
	s.cmd = exec.Command("bash", "--norc", "--noprofile", "-c", driver)
	s.cmd.Dir = dir
	s.cmd.Env = append(append([]string(nil), env...), "DOCTEST_ROOT="+root, "DOCTEST_OUTPUT="+s.output)
	s.cmd.ExtraFiles = []*os.File{commandsRead, statusesWrite}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = s.cmd.Start()
	err = errors.Join(err, commandsRead.Close(), statusesWrite.Close())
	if err != nil {
		return nil, errors.Join(err, commands.Close(), statuses.Close())
	}
	return s, nil
}

// close ends the shell and its background jobs.
func (s *shell) close() error {
	err := s.commands.Close() // the shell ends then; its trap ends its jobs and waits for them
	late := time.AfterFunc(commandTime, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	_ = s.cmd.Wait() // its status is that of the last command
	late.Stop()
	return errors.Join(err, s.statuses.Close())
}

// run runs one command and returns its status and output.
func (s *shell) run(text string) (status int, said string, err error) {
	if _, err := s.commands.WriteString(text + "\x00"); err != nil {
		return 0, "", err
	}
	if err := s.statuses.SetReadDeadline(time.Now().Add(commandTime)); err != nil {
		return 0, "", err
	}
	line, err := s.read.ReadString('\n')
	out, _ := os.ReadFile(s.output)
	if err != nil {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // a hanging command would block the shell
		return 0, string(out), fmt.Errorf("it did not end within %s: %w", commandTime, err)
	}
	status, err = strconv.Atoi(strings.TrimSpace(line))
	return status, string(out), err
}

// must runs a command of the test itself. A status other than 0 is an error.
func (s *shell) must(text string) (string, error) {
	status, said, err := s.run(text)
	if err == nil && status != 0 {
		err = fmt.Errorf("%s: status %d: %s", text, status, said)
	}
	return said, err
}

var (
	serving = regexp.MustCompile(`^(\w+=\S+ )*bin/worker$`)
	address = regexp.MustCompile(`127\.0\.0\.1:\d+`)
)

// perform runs a command of a page according to its kind (see the package's comment).
func (s *shell) perform(ctx context.Context, c command) error {
	var code int
	var said string
	var err error
	switch {
	case serving.MatchString(c.text):
		code, said, err = s.serve(ctx, c.text)
	case c.status == untilStopped:
		code = untilStopped
		said, err = s.stopAfterOutput(ctx, c.text)
	default:
		if code, said, err = s.run(c.text); err == nil && strings.HasSuffix(c.text, "&") {
			err = awaitListeners(ctx, address.FindAllString(c.text, -1))
		}
	}
	if err == nil && code != c.status {
		err = fmt.Errorf("it ended with %d, not with %d", code, c.status)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, strings.TrimSpace(said[max(0, len(said)-3000):]))
	}
	return nil
}

// serve runs a worker until it is ready, and stops it.
func (s *shell) serve(ctx context.Context, text string) (int, string, error) {
	if s.listen == "" {
		return 0, "", fmt.Errorf("beside the demo's worker no other can run: mark the block %q", ownServices)
	}
	if _, err := s.must(text + ` >served.txt 2>&1 & served=$!`); err != nil {
		return 0, "", err
	}
	ready := awaitReady(ctx, "http://"+s.listen+"/readyz")
	code, said, err := s.run(`kill -TERM $served; wait $served; ended=$?; cat served.txt; (exit $ended)`)
	return code, said, errors.Join(ready, err)
}

// stopAfterOutput runs a command until it has written something, and stops it. A command that has ended by itself is a
// fault.
func (s *shell) stopAfterOutput(ctx context.Context, text string) (said string, err error) {
	file := s.output + ".stream"
	if _, err := s.must(text + " >" + file + " & stream=$!"); err != nil {
		return "", err
	}
	written := poll(ctx, "output", func(context.Context) bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
	said, err = s.must("cat " + file + " && kill $stream && { wait $stream || true; }")
	return said, errors.Join(written, err)
}

// poll calls ok until it returns true, at most for commandTime.
func poll(ctx context.Context, what string, ok func(ctx context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	return trial.Until(ctx, 20*time.Millisecond, what, func() (bool, error) { return ok(ctx), nil })
}

func awaitReady(ctx context.Context, url string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	return poll(ctx, "the worker to be ready", func(ctx context.Context) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false
		}
		res, err := client.Do(req)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// awaitListeners waits until each address accepts connections.
func awaitListeners(ctx context.Context, addresses []string) error {
	for _, a := range addresses {
		err := poll(ctx, "somebody to listen at "+a, func(ctx context.Context) bool {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", a)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
