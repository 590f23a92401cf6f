package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
)

// lockName is the file in a data folder that the process which uses the folder has locked.
const lockName = "herald.lock"

// InUseError reports that another live process has locked a folder.
type InUseError struct {
	Dir string
	PID int // 0 if unknown
}

func (e *InUseError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s is in use by %s: stop that one, or choose another folder with HERALD_DATA", e.Dir, who)
}

// Lock is an acquired lock. It ends with Release or with this process.
type Lock struct{ f *os.File }

// LockDir creates the data folder if it is missing (0700; 0711 for root, whose servers run as another user) and locks
// it. It returns *InUseError if a live process has locked it.
func LockDir(dir string) (*Lock, error) {
	// ReadRunFile tests the lock by holding it for microseconds, so wait a moment.
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	return WaitLockDir(ctx, dir)
}

// WaitLockDir is LockDir, but waits for the lock until ctx ends.
func WaitLockDir(ctx context.Context, dir string) (*Lock, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := ensureDir(dir); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	return waitLock(ctx, filepath.Join(dir, lockName), dir)
}

// serverName is the file in the folder of a server with the process id of the server.
const serverName = "server.pid"

// lockPart locks the folder of one server. The caller holds the lock of the whole folder, so no other process starts
// servers there. If a killed process left its server, lockPart waits until the server, which inherited the lock
// (program.lock), has ended.
func lockPart(ctx context.Context, base string, ask syscall.Signal, log *slog.Logger) (*Lock, error) {
	path := filepath.Join(base, "lock")
	l, err := tryLock(path, base)
	inUse, isHeld := errors.AsType[*InUseError](err)
	if !isHeld {
		return l, err
	}
	inUse.PID = readPID(filepath.Join(base, serverName))
	log.Info("waiting for a server that a killed process left", "dir", base, "pid", inUse.PID)
	endLeftover(inUse.PID, base, ask)
	ctx, cancel := withTimeout(ctx, stopTimeout)
	defer cancel()
	if l, err = waitLock(ctx, path, base); errors.As(err, new(*InUseError)) {
		return nil, fmt.Errorf("a server that a killed process left has not ended: %w", inUse)
	}
	return l, err
}

// waitLock locks the file at path; dir is the folder that errors name.
func waitLock(ctx context.Context, path, dir string) (*Lock, error) {
	for {
		l, err := tryLock(path, dir)
		var inUse *InUseError
		if err == nil || !errors.As(err, &inUse) {
			return l, err
		}
		if loop.Pause(ctx, 20*time.Millisecond) != nil {
			return nil, err
		}
	}
}

func tryLock(path, dir string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of %s: %w", dir, err)
	}
	if err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid := readPID(path)
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &InUseError{Dir: dir, PID: pid}
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	// The process id only helps people and ReadRunFile; only the flock counts.
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("write the lock of %s: %w", dir, err)
		}
	}
	return &Lock{f: f}, nil
}

// Release releases the lock. The file stays: if it were removed, two processes could lock two files of the same name.
func (l *Lock) Release() error {
	if l == nil || l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	_ = f.Truncate(0)
	return f.Close()
}

// lockHolder reports whether a process, including this one, holds the lock file, and its process id.
func lockHolder(path string) (pid int, held bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return 0, false, err
	}
	defer f.Close()
	switch err := flock(f, syscall.LOCK_SH|syscall.LOCK_NB); {
	case err == nil:
		return 0, false, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return readPID(path), true, nil
	default:
		return 0, false, err
	}
}

// CheckFree returns nil if no process has locked the data folder, else *InUseError. It creates nothing; a missing
// folder counts as free.
func CheckFree(dir string) error {
	pid, held, err := lockHolder(filepath.Join(dir, lockName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("test the lock of %s: %w", dir, err)
	case held:
		return &InUseError{Dir: dir, PID: pid}
	}
	return nil
}

// readPID returns the process id in the first line of a file, or 0.
func readPID(path string) int {
	b, _ := readSmall(path)
	line, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
