package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lockName is the file in a data folder whose flock says that a process uses it.
const lockName = "herald.lock"

// InUseError means that another live process holds a folder.
type InUseError struct {
	Dir string
	PID int // 0: not known
}

func (e *InUseError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = fmt.Sprintf("process %d", e.PID)
	}
	return fmt.Sprintf("%s is in use by %s: stop that one, or choose another folder with HERALD_DATA", e.Dir, who)
}

// Lock is held until Release, or until this process ends in whatever way.
type Lock struct{ f *os.File }

// LockDir makes the data folder if it is missing (0700; 0711 for root, whose servers run as another user) and takes it
// for this process. *InUseError when a live process has it.
func LockDir(dir string) (*Lock, error) {
	// ReadRunFile tests the lock by taking it for microseconds; do not stumble over that.
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	return WaitLockDir(ctx, dir)
}

// WaitLockDir is LockDir that waits for the holder for as long as ctx allows.
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

// lockPart takes the lock of one server's folder, which a dying process may still hold for a moment.
func lockPart(ctx context.Context, base string) (*Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	return waitLock(ctx, filepath.Join(base, "lock"), base)
}

// waitLock takes the lock file at path; dir is what the error calls taken.
func waitLock(ctx context.Context, path, dir string) (*Lock, error) {
	for {
		l, err := tryLock(path, dir)
		var inUse *InUseError
		if err == nil || !errors.As(err, &inUse) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func tryLock(path, dir string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of %s: %w", dir, err)
	}
	if err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid := lockPID(path)
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &InUseError{Dir: dir, PID: pid}
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	// The number only helps people and ReadRunFile; the flock is what counts.
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("write the lock of %s: %w", dir, err)
		}
	}
	return &Lock{f: f}, nil
}

// Release gives the folder free. The file stays: removing it would let two processes lock two files of one name.
func (l *Lock) Release() error {
	if l == nil || l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	_ = f.Truncate(0)
	return f.Close()
}

// lockHolder says whether some process, this one included, holds the lock file, and which.
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
		return lockPID(path), true, nil
	default:
		return 0, false, err
	}
}

// CheckFree is nil when no process holds the data folder, *InUseError when one does. Nothing is made; a folder that is
// not there is free.
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

func lockPID(path string) int {
	b, err := readSmall(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
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
