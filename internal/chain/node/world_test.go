package node

import (
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

func newPool(t *testing.T, cfg Config) *Pool {
	t.Helper()
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	p, err := New(cfg)
	heraldtest.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// newStubPool returns a pool of stub nodes of chain 1.
func newStubPool(t *testing.T, nodes ...*chaintest.Node) *Pool {
	t.Helper()
	cfg := Config{ChainID: 1, Timeout: 20 * time.Second}
	for _, n := range nodes {
		cfg.URLs = append(cfg.URLs, secret.New(n.URL))
	}
	return newPool(t, cfg)
}

// newScriptedPool returns a pool of the node.
func newScriptedPool(t *testing.T, s *chaintest.Script) *Pool {
	t.Helper()
	return newPool(t, Config{ChainID: max(s.Chain, 1), URLs: []secret.Secret{secret.New(s.Serve(t))}, Timeout: 20 * time.Second})
}

func as[E error](err error) bool {
	var target E
	return errors.As(err, &target)
}
