package follower

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
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
	w := chaintest.NewWorld(t, eventlog.Job)
	return &world{w, newReader(t, w.Net.ChainID(), false, w.Net.URL())}
}
