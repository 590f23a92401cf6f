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

// maxSocketDir is the longest folder that can hold Postgres' socket: sun_path takes 103 bytes on macOS and 107 on
// Linux, and "/.s.PGSQL.5432" is appended.
const maxSocketDir = 103 - len("/.s.PGSQL.5432")

// socketPrefix names the folders below /tmp that hold sockets whose data folder has too long a path.
const socketPrefix = "herald-socket-"

// DefaultDataDir is where data lives when HERALD_DATA is not set: /var/lib/herald for root, else
// $XDG_STATE_HOME/herald, else ~/.local/state/herald. It is not created. Empty when the user has no home: then
// HERALD_DATA must be given.
func DefaultDataDir() string {
	return defaultDir("/var/lib/herald", "XDG_STATE_HOME", ".local/state")
}

// DefaultCacheDir is where fetched binaries live: /var/cache/herald for root, else $XDG_CACHE_HOME/herald, else
// ~/.cache/herald. Empty when the user has no home.
func DefaultCacheDir() string {
	return defaultDir(systemCacheDir, "XDG_CACHE_HOME", ".cache")
}

// systemCacheDir is what root fills for everybody. A variable, like postgresDirs, so that a test can have a machine
// without programs.
var systemCacheDir = "/var/cache/herald"

func defaultDir(root, variable, belowHome string) string {
	if os.Geteuid() == 0 {
		return root
	}
	// The XDG specification says that a relative path is to be ignored.
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "herald")
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return ""
	}
	return filepath.Join(home, belowHome, "herald")
}

// ownDirMode is the mode of folders that this process makes for itself. Root's can be passed through, not listed,
// because a server that runs as another user has its folder below.
func ownDirMode() fs.FileMode {
	if os.Geteuid() == 0 {
		return 0o711
	}
	return 0o700
}

// ensureDir makes dir and its missing parents. The mode of what exists is left alone.
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
		return nil // made by another process just now
	} else if err != nil {
		return err
	}
	// A umask must not take away what the server's user needs.
	return os.Chmod(dir, ownDirMode())
}

// freshDir replaces dir by an empty folder that only account may enter.
func freshDir(dir string, acct account) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return acct.giveTo(dir)
}

// dataDir makes dir, owned by account, unless it is there.
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

// socketFolder makes an empty folder for a socket: DIR/run, or one below /tmp when that path is too long for a socket
// or has a character that a connection URL would split at. The second is removed by the server's Stop.
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
		err = fmt.Errorf("the path of %s is too long for a unix socket and %s cannot be used instead: choose a shorter HERALD_DATA", base, os.TempDir())
	}
	return "", false, err
}

// UnreachableError means that the user that a server must run as cannot pass through a folder.
type UnreachableError struct {
	Path string // what was to be reached
	At   string // the folder that cannot be entered
	User string
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("user %s, which the server has to run as, cannot enter %s on the way to %s: use a folder outside of it (HERALD_DATA), such as /var/lib/herald, or let others pass with chmod o+x %s",
		e.User, e.At, e.Path, e.At)
}

// checkPassage says whether the account may pass through dir and everything above it, by the permission bits.
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

// readSmall reads at most 4 KiB of a regular file in a folder that a less trusted user may write to: a link, a pipe or
// a device put there must not be followed or hang us.
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

// writeAtomic replaces a file so that a reader, also one after a power failure, sees the old content or the new, never
// a part.
func writeAtomic(path string, mode fs.FileMode, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
	}()
	if err = f.Chmod(mode); err != nil {
		return err
	}
	if err = write(f); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems cannot sync a folder; the rename itself has happened.
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}
