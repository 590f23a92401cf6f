package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// server is a server in a folder of its own, with everything that a complete or partial start has acquired.
type server struct {
	base      string // the folder, in a data folder
	data      string // base/data
	sockets   string
	tempSock  bool // sockets is in /tmp
	acct      account
	child     *child
	ephemeral *ephemeral // nil: the data stays
	lock      *Lock
}

// minSpace is the free space below which a full disk is named as a cause of a failed start. A file of Postgres' log has
// 16 MiB.
const minSpace = 16 << 20

// checkFolder checks the options about the data folder.
func checkFolder(dir string, isEphemeral bool) error {
	switch {
	case isEphemeral && dir != "":
		return errors.New("options Dir and Ephemeral exclude each other")
	case !isEphemeral && dir == "":
		return errors.New("a data folder is needed (HERALD_DATA)")
	}
	return nil
}

// lockFolder creates and locks the folder in dir. If isEphemeral is set, it makes a temporary data folder in parent.
func (s *server) lockFolder(ctx context.Context, name, dir string, isEphemeral bool, parent string,
	log *slog.Logger) (err error) {
	if isEphemeral {
		if s.ephemeral, err = newEphemeral(ctx, parent, log); err != nil {
			return err
		}
		dir = s.ephemeral.dir
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	s.base = filepath.Join(dir, name)
	s.data = filepath.Join(s.base, "data")
	if err = ensureDir(s.base); err != nil {
		return err
	}
	s.lock, err = lockPart(ctx, s.base)
	return err
}

// restrictTo sets the account that the server runs as, and keeps others out of its folder.
func (s *server) restrictTo(acct account) error {
	s.acct = acct.inPrivateGroup()
	return errors.Join(s.acct.restrictFolder(s.base, 0o710), s.acct.checkPassage(s.base))
}

// launch starts the program as the account, and waits until isReady returns true.
func (s *server) launch(ctx context.Context, p program, isReady func() (bool, error)) (err error) {
	p.acct = s.acct
	if s.child, err = p.start(); err != nil {
		return err
	}
	err = pollUntil(ctx, 5*time.Millisecond, func() (bool, error) {
		select {
		case <-s.child.done:
			return false, s.child.startError()
		default:
			return isReady()
		}
	})
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w; it said: %s", err, s.child.tail.lastLines())
	}
	if full := describeFullDisk(s.base, minSpace); err != nil && full != "" {
		err = fmt.Errorf("%s (%w)", full, err) // Postgres does not always log that as the cause
	}
	if err != nil {
		return fmt.Errorf("wait for %s: %w", p.name, err)
	}
	s.child.setServing(true)
	return nil
}

// release stops the process (see child.stop), and releases everything else.
func (s *server) release(ctx context.Context, ask, insist syscall.Signal) error {
	var errs []error
	if s.child != nil {
		errs = append(errs, s.child.stop(ctx, ask, insist))
	}
	if s.tempSock {
		errs = append(errs, os.RemoveAll(s.sockets))
	}
	return errors.Join(append(errs, s.lock.Release(), s.ephemeral.remove())...)
}
