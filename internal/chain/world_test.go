package chain

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

import ()

func TestMain(m *testing.M) { heraldtest.Main(m, devnettest.Leftovers()...) }

var limits = job.Limits{MaxTimeout: 30 * time.Second}

func newPool(t *testing.T, cfg PoolConfig) *Pool {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	p, err := NewPool(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// newStubPool returns a pool of stub nodes of chain 1.
func newStubPool(t *testing.T, nodes ...*stubNode) *Pool {
	t.Helper()
	cfg := PoolConfig{ChainID: 1, Timeout: 20 * time.Second}
	for _, n := range nodes {
		cfg.URLs = append(cfg.URLs, secret.New(n.url))
	}
	return newPool(t, cfg)
}

// newReader returns a reader of the nodes at urls.
func newReader(t *testing.T, chainID uint64, trusted bool, urls ...string) *Reader {
	t.Helper()
	cfg := PoolConfig{ChainID: chainID}
	for _, u := range urls {
		cfg.URLs = append(cfg.URLs, secret.New(u))
	}
	return NewReader(newPool(t, cfg), trusted)
}

// newClient returns a client of the chain's node with the registries of cfg.
func newClient(t *testing.T, nodes PoolConfig, cfg Config) *Client {
	t.Helper()
	cfg.Logs = NewReader(newPool(t, nodes), false)
	return New(cfg)
}

// newScripted returns a client of the node that searches logRange blocks.
func newScripted(t *testing.T, s *scriptedNode, logRange uint64) *Client {
	t.Helper()
	return newClient(t, PoolConfig{ChainID: max(s.chain, 1), URLs: []secret.Secret{secret.New(s.serve(t))},
		Timeout: 20 * time.Second}, Config{Registries: scriptedRegistries().Registries(), LogRange: erc8004.Depth{Blocks: logRange}})
}

// newScriptedPool returns a pool of the node.
func newScriptedPool(t *testing.T, s *scriptedNode) *Pool {
	t.Helper()
	return newPool(t, PoolConfig{ChainID: max(s.chain, 1), URLs: []secret.Secret{secret.New(s.serve(t))}, Timeout: 20 * time.Second})
}

// world is a development chain and a client of its node.
type world struct {
	*devWorld
	client *Client
}

func newWorld(t *testing.T, confirmations uint64) *world {
	t.Helper()
	w := newDevWorld(t)
	return &world{w, newClient(t, PoolConfig{ChainID: w.net.ChainID(), URLs: []secret.Secret{secret.New(w.net.URL())}},
		Config{Confirmations: erc8004.Depth{Blocks: confirmations}, Registries: w.net.Deployment().Registries(), LogRange: erc8004.Depth{Blocks: 1000}})}
}

// job returns the job of the event of that kind in a receipt.
func (w *world) job(kind erc8004.Kind, r *types.Receipt, err error) job.Job {
	w.t.Helper()
	heraldtest.Must(w.t, err)
	for _, l := range r.Logs {
		e, err := erc8004.Decode(*l)
		if err != nil || e.Kind != kind {
			continue
		}
		j, err := Job(e, w.net.ChainID(), w.net.Deployment(), l.BlockTimestamp, limits)
		heraldtest.Must(w.t, err)
		return j
	}
	w.t.Fatalf("no %s in the receipt", kind)
	return job.Job{}
}

func (w *world) feedback() job.Job {
	w.t.Helper()
	r, err := w.giveFeedback()
	return w.job(erc8004.NewFeedback, r, err)
}

// minedAt returns the timestamp of a job's block.
func (w *world) minedAt(j job.Job) int64 {
	w.t.Helper()
	b, err := w.client.readBlock(w.ctx, j.BlockNumber)
	if err != nil || b == nil {
		w.t.Fatal(err)
	}
	return int64(b.Time)
}

// check returns the standing of a job without its event.
func (w *world) check(j job.Job, v Verify) Standing {
	w.t.Helper()
	s, err := w.client.Check(w.ctx, j, v)
	heraldtest.Must(w.t, err)
	s.Event = nil
	return s
}

// readEvent returns the event of a job.
func (w *world) readEvent(j job.Job) job.Job {
	w.t.Helper()
	s, err := w.client.Check(w.ctx, j, VerifyReceipt)
	if err != nil || s.Event == nil {
		w.t.Fatalf("%+v, %v", s, err)
	}
	return *s.Event
}

// job2 accepts the results of a devnet helper, and returns a function that builds the job of the event of a kind in
// them.
func (w *world) job2(r *types.Receipt, err error) func(erc8004.Kind) job.Job {
	return func(kind erc8004.Kind) job.Job {
		w.t.Helper()
		return w.job(kind, r, err)
	}
}
