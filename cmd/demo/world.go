package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/fullnode"
	"github.com/agentherald/herald/internal/testing/ipfstest"
)

// world holds the surroundings of the worker: chain, content and agents.
type world struct {
	net     *devnet.Net
	gateway *ipfstest.Gateway
	ipfsURL string
	agent   string // the example agent's binary
	httpURL string // of the HTTP agent
	flaky   *flaky
	list    string // file that the agents' domain serves, with the names of the agents
	agents  []any  // content of that file
	data    string
	env     []string // settings for the worker and commands
	envFile string   // set once it is written

	servers    []*http.Server
	child      *exec.Cmd
	background sync.WaitGroup // servers and the reader of the agent's output
}

func newWorld(ctx context.Context, agent string, tl *timeline) (_ *world, err error) {
	w := &world{agent: agent, gateway: ipfstest.New()}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	launch := func(chainID uint64, funded []common.Address) (devnet.Node, error) {
		return fullnode.Start(chainID, funded)
	}
	if w.net, err = devnet.Start(ctx, devnet.Config{Launch: launch, Interval: time.Second}); err != nil {
		return nil, err
	}
	tl.printFact("chain", fmt.Sprintf("%d at %s, in this process, a block each second", w.net.ChainID(), w.net.URL()))
	d := w.net.Deployment()
	tl.printFact("registries", fmt.Sprintf("identity %s, reputation %s", d.Identity, d.Reputation))
	if w.ipfsURL, err = w.serveHTTP(w.gateway.Handler()); err != nil {
		return nil, err
	}
	tl.printFact("ipfs", w.ipfsURL+", in this process; its answers are verified against the CID")
	list, err := os.CreateTemp("", "herald-demo-agents-*.json")
	if err != nil {
		return nil, fmt.Errorf("make the list of agents: %w", err)
	}
	w.list = list.Name()
	if err := list.Close(); err != nil {
		return nil, err
	}
	if w.httpURL, err = w.startAgent(ctx); err != nil {
		return nil, err
	}
	w.flaky = newFlaky(w.httpURL)
	flakyURL, err := w.serveHTTP(w.flaky)
	if err != nil {
		return nil, err
	}
	w.flaky.url = flakyURL + "/mcp"
	tl.printFact("agents", fmt.Sprintf("%s (process %d), the same behind %s, and over stdio", w.httpURL,
		w.child.Process.Pid,
		w.flaky.url))
	return w, nil
}

// confirmations is the number of blocks, one per second, that must follow a feedback before its agent is called. It
// leaves time for a reorg.
const confirmations = 2

// makeEnvironment returns the settings of the worker.
func (w *world) makeEnvironment(data, listen string) []string {
	w.data = data
	d, id := w.net.Deployment(), w.net.ChainID()
	commands, _ := json.Marshal([][]string{{w.agent}}) // cannot fail: it encodes strings
	env := []string{
		"HERALD_DATA=" + data, "HERALD_LISTEN=" + listen, "HERALD_STDIO_COMMANDS=" + string(commands),
		"HERALD_ALLOW_NETWORKS=127.0.0.0/8", "IPFS_GATEWAYS=" + w.ipfsURL,
		// The worker follows the chain itself, and over a websocket each new block wakes it.
		fmt.Sprintf("RPC_URL_%d=%s", id, w.net.WebSocketURL()), fmt.Sprintf("HERALD_WATCH=%d", id),
		fmt.Sprintf("HERALD_CONFIRMATIONS=%d=%d", id, confirmations),
		fmt.Sprintf("IDENTITY_REGISTRY_%d=%s", id, d.Identity),
		fmt.Sprintf("REPUTATION_REGISTRY_%d=%s", id, d.Reputation),
		fmt.Sprintf("VALIDATION_REGISTRY_%d=%s", id, d.Validation),
	}
	if cache := os.Getenv("HERALD_CACHE"); cache != "" {
		env = append(env, "HERALD_CACHE="+cache)
	}
	w.env = env
	return env
}

// serveHTTP serves a handler on a free port of loopback and returns its URL.
func (w *world) serveHTTP(h http.Handler) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	w.serveOn(l, h)
	return "http://" + l.Addr().String(), nil
}

func (w *world) serveOn(l net.Listener, h http.Handler) {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	w.servers = append(w.servers, s)
	w.background.Go(func() { _ = s.Serve(l) }) // returns when close closes the server
}

// startAgent starts the example agent over HTTP, and reads its address from its output.
func (w *world) startAgent(ctx context.Context) (string, error) {
	w.child = exec.Command(w.agent, "-http", "127.0.0.1:0", "-registration", w.list)
	w.child.SysProcAttr = ownGroup()
	stderr, err := w.child.StderrPipe()
	if err != nil {
		return "", err
	}
	if err := w.child.Start(); err != nil {
		w.child = nil
		return "", fmt.Errorf("start the example agent (make build makes it): %w", err)
	}
	address := make(chan string, 1)
	w.background.Go(func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			if url, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
				address <- url
			}
		}
		_ = lines.Err() // whoever waits for the address learns it from the silence
	})
	select {
	case url := <-address:
		return url, nil
	case <-time.After(10 * time.Second):
		return "", errors.New("the example agent did not say where it listens")
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

func (w *world) close() error {
	errs := []error{w.removeEnvFile()}
	if w.list != "" {
		errs = append(errs, os.Remove(w.list))
	}
	for _, s := range w.servers {
		errs = append(errs, s.Close())
	}
	if w.child != nil {
		_ = syscall.Kill(-w.child.Process.Pid, syscall.SIGTERM)
		_ = w.child.Wait() // the goroutine that reads its pipe ends with it
	}
	w.background.Wait()
	if w.net != nil {
		errs = append(errs, w.net.Close())
	}
	return errors.Join(errs...)
}
