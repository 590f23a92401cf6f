package backend

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestKeysetOfTheDataFolder checks that the keyset of the embedded database is wrapped if there is a master key, and
// that commands open it as the worker does.
func TestKeysetOfTheDataFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	master := "HERALD_MASTER_KEY=" + strings.Repeat("5a", 32)
	with := func(more ...string) (*secret.Keyset, error) {
		t.Helper()
		return Keyset(load(t, append(more, "HERALD_DATA="+dir)...))
	}
	b := &Backend{DataDir: dir, EmbeddedDatabase: true}
	cfg := load(t, "HERALD_DATA="+dir, master)
	made, err := b.Keyset(cfg, slog.New(slog.DiscardHandler))
	heraldtest.Must(t, err)
	raw, err := os.ReadFile(filepath.Join(dir, keysetFile))
	if err != nil || !secret.IsWrapped(secret.New(string(raw))) {
		t.Errorf("it lies in clear: %v", err)
	}
	again, err := b.Keyset(cfg, slog.New(slog.DiscardHandler))
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "the key of the same folder", again.PrimaryID(), made.PrimaryID())
	if k, err := with(master); err != nil || k.PrimaryID() != made.PrimaryID() {
		t.Error(err)
	}
	_, err = with()
	heraldtest.Fails(t, "without a master key", err, "set HERALD_MASTER_KEY")
	_, err = with("HERALD_MASTER_KEY=" + strings.Repeat("00", 32))
	heraldtest.Fails(t, "with another master key", err, "does not open it")
}

func TestMain(m *testing.M) { heraldtest.Main(m) }

func load(t testing.TB, env ...string) *config.Config {
	t.Helper()
	cfg, err := config.Load(env)
	heraldtest.Must(t, err)
	return cfg
}
