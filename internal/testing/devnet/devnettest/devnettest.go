// Package devnettest starts development chains for tests, each with a node in a process of its own. So a test program
// does not link go-ethereum's node, and the race detector does not watch it.
package devnettest

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/scripts/script"
)

// Start starts a chain and stops it when the test ends.
func Start(t testing.TB, cfg devnet.Config) *devnet.Net {
	t.Helper()
	program, err := findProgram() // may compile it, so this comes before the limit
	heraldtest.Must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cfg.Launch = func(chainID uint64, funded []common.Address) (devnet.Node, error) {
		return startProcess(program, chainID, funded)
	}
	n, err := devnet.Start(ctx, cfg)
	heraldtest.Must(t, err)
	t.Cleanup(func() { heraldtest.Must(t, n.Close()) })
	return n
}

// process is a running devnode.
type process struct {
	cmd    *exec.Cmd
	input  io.Closer // its end ends the process
	client *rpc.Client
}

// startProcess starts devnode. The end of this process ends it too.
func startProcess(program string, chainID uint64, funded []common.Address) (*process, error) {
	args := []string{strconv.FormatUint(chainID, 10)}
	for _, account := range funded {
		args = append(args, account.Hex())
	}
	p := &process{cmd: exec.Command(program, args...)}
	p.cmd.Stderr = os.Stderr
	return p, script.Try(func() {
		input, output := script.Must(p.cmd.StdinPipe()), script.Must(p.cmd.StdoutPipe())
		script.Check(p.cmd.Start())
		p.input, p.client = input, script.Must(rpc.DialIO(context.Background(), output, input)) // its error is the context's
	})
}

func (p *process) Client() *rpc.Client { return p.client }

// Close ends the process and waits for it. The client ends when the process has closed its output.
func (p *process) Close() error {
	kill := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	err := p.input.Close()
	p.client.Close()
	return errors.Join(err, p.cmd.Wait())
}

// folder is the tested package's, also when a test has changed the working directory since.
var folder, errFolder = os.Getwd()

// buildTimeout bounds the compilation of devnode, which takes minutes with an empty build cache.
const buildTimeout = 10 * time.Minute

// findProgram returns the path of devnode: bin/devnode of the module. It builds the program, unless make has just built
// it (TRIAL_BUILT).
var findProgram = sync.OnceValues(func() (path string, err error) {
	err = script.Try(func() {
		script.Check(errFolder)
		ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
		defer cancel()
		module := exec.CommandContext(ctx, "go", "env", "GOMOD")
		module.Dir = folder
		root := filepath.Dir(strings.TrimSpace(string(script.Must(module.Output()))))
		path = filepath.Join(root, "bin", "devnode")
		if os.Getenv("TRIAL_BUILT") != "" {
			return
		}
		build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", path, "./internal/testing/devnet/devnode")
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			script.Fail("building devnode: %w\n%s", err, out)
		}
	})
	return path, err
})
