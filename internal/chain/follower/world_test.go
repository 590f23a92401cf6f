package follower

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

var limits = job.Limits{MaxTimeout: 30 * time.Second}

func newPool(t *testing.T, cfg node.Config) *node.Pool {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	p, err := node.New(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// newReader returns a reader of the nodes at urls.
func newReader(t *testing.T, chainID uint64, trusted bool, urls ...string) *eventlog.Reader {
	t.Helper()
	cfg := node.Config{ChainID: chainID}
	for _, u := range urls {
		cfg.URLs = append(cfg.URLs, secret.New(u))
	}
	return eventlog.New(newPool(t, cfg), trusted)
}

// world is a development chain and a reader of its logs.
type world struct {
	*chaintest.World
	client *eventlog.Reader
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := chaintest.NewWorld(t)
	return &world{w, newReader(t, w.Net.ChainID(), false, w.Net.URL())}
}

// job returns the job of the event of that kind in a receipt.
func (w *world) job(kind erc8004.Kind, r *types.Receipt, err error) job.Job {
	w.T.Helper()
	heraldtest.Must(w.T, err)
	for _, l := range r.Logs {
		e, err := erc8004.Decode(*l)
		if err != nil || e.Kind != kind {
			continue
		}
		j, err := eventlog.Job(e, w.Net.ChainID(), w.Net.Deployment(), l.BlockTimestamp, limits)
		heraldtest.Must(w.T, err)
		return j
	}
	w.T.Fatalf("no %s in the receipt", kind)
	return job.Job{}
}

func (w *world) feedback() job.Job {
	w.T.Helper()
	r, err := w.GiveFeedback()
	return w.job(erc8004.NewFeedback, r, err)
}

// job2 accepts the results of a devnet helper, and returns a function that builds the job of the event of a kind in
// them.
func (w *world) job2(r *types.Receipt, err error) func(erc8004.Kind) job.Job {
	return func(kind erc8004.Kind) job.Job {
		w.T.Helper()
		return w.job(kind, r, err)
	}
}

// head returns the number of the newest block.
func (w *world) head() uint64 {
	w.T.Helper()
	b, err := w.client.ReadHead(w.Ctx)
	heraldtest.Must(w.T, err)
	return uint64(b.Number)
}
