package chain

import (
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

func newPool(t *testing.T, cfg node.Config) *node.Pool {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	p, err := node.New(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// newClient returns a client of the chain's node with the registries of cfg.
func newClient(t *testing.T, nodes node.Config, cfg Config) *Client {
	t.Helper()
	cfg.Logs = eventlog.New(newPool(t, nodes), false)
	return New(cfg)
}

// newScripted returns a client of the node that searches logRange blocks.
func newScripted(t *testing.T, s *chaintest.Script, logRange uint64) *Client {
	t.Helper()
	if s.HeadAt.IsZero() {
		s.HeadAt = time.Now()
	}
	return newClient(t, node.Config{ChainID: max(s.Chain, 1), URLs: []secret.Secret{secret.New(s.Serve(t))},
		Timeout: 20 * time.Second}, Config{Registries: chaintest.ScriptedRegistries().Registries(), LogRange: erc8004.Depth{Blocks: logRange}})
}

// world is a development chain and a client of its node.
type world struct {
	*chaintest.World
	client *Client
}

func newWorld(t *testing.T, confirmations uint64) *world {
	t.Helper()
	w := &world{World: chaintest.NewWorld(t, eventlog.Job)}
	w.client = w.newClient(Config{Confirmations: erc8004.Depth{Blocks: confirmations}, LogRange: erc8004.Depth{Blocks: 1000}}, w.Net.URL())
	return w
}

// newClient returns a client of the chain's nodes at urls.
func (w *world) newClient(cfg Config, urls ...string) *Client {
	w.T.Helper()
	nodes := node.Config{ChainID: w.Net.ChainID()}
	for _, url := range urls {
		nodes.URLs = append(nodes.URLs, secret.New(url))
	}
	cfg.Registries = w.Net.Deployment().Registries()
	return newClient(w.T, nodes, cfg)
}

// minedAt returns the timestamp of a job's block.
func (w *world) minedAt(j job.Job) int64 {
	w.T.Helper()
	b, err := w.client.ReadBlock(w.Ctx, j.BlockNumber)
	if err != nil || b == nil {
		w.T.Fatal(err)
	}
	return int64(b.Time)
}

// check returns the standing of a job without its event.
func (w *world) check(j job.Job, v Verify) Standing {
	w.T.Helper()
	s, err := w.client.Check(w.Ctx, j, v)
	heraldtest.Must(w.T, err)
	s.Event = nil
	return s
}

// readEvent returns the event of a job.
func (w *world) readEvent(j job.Job) job.Job {
	w.T.Helper()
	s, err := w.client.Check(w.Ctx, j, VerifyReceipt)
	if err != nil || s.Event == nil {
		w.T.Fatalf("%+v, %v", s, err)
	}
	return *s.Event
}

func as[E error](err error) bool {
	var target E
	return errors.As(err, &target)
}
