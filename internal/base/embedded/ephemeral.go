package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ephemeralPrefix begins the names of temporary data folders. Each is locked while its process lives.
const ephemeralPrefix = "herald-ephemeral-"

// abandonedAfter is the age at which an unlocked temporary folder counts as abandoned. A younger one may be about to be
// locked.
const abandonedAfter = time.Minute

// ephemeral is a data folder for one run.
type ephemeral struct {
	dir  string
	lock *Lock
}

// newEphemeral creates a temporary data folder in parent. It first removes those that killed processes of this user
// left there. An empty parent is the system's folder for temporary files.
func newEphemeral(ctx context.Context, parent string, log *slog.Logger) (*ephemeral, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	removeAbandoned(ctx, parent, log)
	dir, err := os.MkdirTemp(parent, ephemeralPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a temporary data folder: %w", err)
	}
	e := &ephemeral{dir: dir}
	if err := os.Chmod(dir, ownDirMode()); err != nil {
		return nil, errors.Join(err, e.remove())
	}
	if e.lock, err = LockDir(dir); err != nil {
		return nil, errors.Join(err, e.remove())
	}
	return e, nil
}

func (e *ephemeral) remove() error {
	if e == nil {
		return nil
	}
	err := os.RemoveAll(e.dir)
	return errors.Join(err, e.lock.Release())
}

// removeAbandoned removes abandoned folders. Failures are only logged, because they cost nothing but disk space.
func removeAbandoned(ctx context.Context, tmp string, log *slog.Logger) {
	found, err := filepath.Glob(filepath.Join(tmp, ephemeralPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range found {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < abandonedAfter {
			continue
		}
		// Any user can create folders in /tmp, so remove only folders of this user.
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || int(stat.Uid) != os.Geteuid() {
			continue
		}
		lock, err := tryLock(filepath.Join(dir, lockName), dir)
		if err != nil {
			if _, ok := errors.AsType[*InUseError](err); !ok && !errors.Is(err, fs.ErrNotExist) {
				log.Debug("an old temporary data folder cannot be read", "dir", dir, "err", err)
			}
			continue
		}
		// A server that the process left may still use it.
		part, err := lockPart(ctx, filepath.Join(dir, "postgres"), syscall.SIGINT, log)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			err = os.RemoveAll(dir)
		}
		if err = errors.Join(err, part.Release(), lock.Release()); err != nil {
			log.Debug("an old temporary data folder stays", "dir", dir, "err", err)
			continue
		}
		log.Debug("removed the temporary data folder of a killed process", "dir", dir)
	}
}
