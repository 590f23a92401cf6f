package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxSocketDir is the length of the longest folder that can hold Postgres' socket: sun_path holds 103 bytes on macOS
// and 107 on Linux, and "/.s.PGSQL.5432" is appended.
const maxSocketDir = 103 - len("/.s.PGSQL.5432")

// socketPrefix begins the names of folders in /tmp for sockets whose data folder has too long a path.
const socketPrefix = "herald-socket-"

// DefaultDataDir returns the data folder if HERALD_DATA is not set: /var/lib/herald for root, else
// $XDG_STATE_HOME/herald, else ~/.local/state/herald. It does not create the folder. It returns "" if the user has no
// home.
func DefaultDataDir() string {
	return defaultDir("/var/lib/herald", "XDG_STATE_HOME", ".local/state")
}

// DefaultCacheDir returns the folder of fetched binaries: /var/cache/herald for root, else $XDG_CACHE_HOME/herald, else
// ~/.cache/herald. It returns "" if the user has no home.
func DefaultCacheDir() string {
	return defaultDir(systemCacheDir, "XDG_CACHE_HOME", ".cache")
}

// systemCacheDir is the cache that root fills for all users. It is a variable, like postgresDirs, so that a test can
// simulate a machine without programs.
var systemCacheDir = "/var/cache/herald"

func defaultDir(root, variable, belowHome string) string {
	if os.Geteuid() == 0 {
		return root
	}
	// The XDG specification requires that a relative path is ignored.
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "herald")
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return ""
	}
	return filepath.Join(home, belowHome, "herald")
}

// ownDirMode returns the mode of folders that this process creates for itself. Other users can pass through root's
// folders but not list them, because a server that runs as another user has its folder in them.
func ownDirMode() fs.FileMode {
	if os.Geteuid() == 0 {
		return 0o711
	}
	return 0o700
}

// ensureDir creates dir and its missing parents. It does not change the mode of existing folders.
func ensureDir(dir string) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", dir)
		}
		return nil
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := ensureDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, ownDirMode()); errors.Is(err, fs.ErrExist) {
		return nil // another process has just created it
	} else if err != nil {
		return err
	}
	// The umask must not remove permissions that the server's user needs.
	return os.Chmod(dir, ownDirMode())
}

// freshDir replaces dir by an empty folder that only the account can enter.
func freshDir(dir string, acct account) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return dataDir(dir, acct)
}

// dataDir creates dir, owned by the account, unless it exists.
func dataDir(dir string, acct account) error {
	if info, err := os.Lstat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", dir)
		}
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return acct.giveTo(dir)
}

// socketFolder creates an empty folder for a socket: DIR/run, or one in /tmp if that path is too long for a socket or
// contains a comma, at which a connection URL would be split. The server's Stop removes a folder in /tmp.
func socketFolder(base string, acct account) (dir string, temporary bool, err error) {
	dir = filepath.Join(base, "run")
	if len(dir) <= maxSocketDir && !strings.ContainsRune(dir, ',') {
		return dir, false, freshDir(dir, acct)
	}
	for _, parent := range []string{os.TempDir(), "/tmp"} {
		if len(parent)+len("/"+socketPrefix)+10 > maxSocketDir || strings.ContainsRune(parent, ',') ||
			acct.checkPassage(parent) != nil {
			continue
		}
		if dir, err = os.MkdirTemp(parent, socketPrefix); err == nil {
			return dir, true, acct.restrictFolder(dir, 0o770)
		}
	}
	if err == nil {
		err = fmt.Errorf("the path of %s is too long for a unix socket and %s cannot be used instead: "+
			"choose a shorter HERALD_DATA", base, os.TempDir())
	}
	return "", false, err
}

// UnreachableError reports that the user of a server cannot pass through a folder.
type UnreachableError struct {
	Path string // the path to reach
	At   string // the folder that cannot be entered
	User string
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("user %s, which the server has to run as, cannot enter %s on the way to %s: "+
		"use a folder outside of it (HERALD_DATA), such as /var/lib/herald, or let others pass with chmod o+x %s",
		e.User, e.At, e.Path, e.At)
}

// checkPassage returns an error unless the permission bits let the account pass through dir and all its parents.
func (a account) checkPassage(dir string) error {
	if !a.isOtherUser() {
		return nil
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	for at := real; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("%s: no owner known", at)
		}
		need := fs.FileMode(0o001)
		switch {
		case stat.Uid == a.uid:
			need = 0o100
		case stat.Gid == a.gid:
			need = 0o010
		}
		if info.Mode().Perm()&need == 0 {
			return &UnreachableError{Path: dir, At: at, User: a.String()}
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// readSmall reads at most 4 KiB of a regular file in a folder that a less trusted user can write to. A link, a pipe or
// a device in its place is neither followed nor waited for.
func readSmall(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, 4096))
}

// writeAtomic replaces a file so that a reader sees either the old or the new content, even after a power failure.
func writeAtomic(path string, mode fs.FileMode, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems cannot sync a folder; the rename itself is done.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}
