package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// clearLeftover waits until the Postgres of a killed process has ended. The kernel asked that Postgres to stop when the
// process died (processAttr). Then it removes a leftover postmaster.pid, which would prevent the start if another
// program of this user has the same process id by now, as happens in containers. The caller holds the cluster's lock.
func clearLeftover(ctx context.Context, data string, log *slog.Logger) error {
	ctx, cancel := withTimeout(ctx, stopTimeout)
	defer cancel()
	logged := false
	err := pollUntil(ctx, 10*time.Millisecond, func() (bool, error) {
		pids, err := workingIn(data, "postgres")
		if len(pids) > 0 && !logged {
			logged = true
			log.Info("postgres: waiting for a server that a killed process left", "processes", pids)
		}
		return len(pids) == 0, err
	})
	if err != nil {
		return fmt.Errorf("a Postgres left by a killed process still uses %s: %w", data, err)
	}
	if err := os.Remove(filepath.Join(data, "postmaster.pid")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove an old postmaster.pid: %w", err)
	}
	return nil
}
