package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// asUser runs f with the rights of another user, on a thread that ends with it. The raw system calls affect that thread
// only, not the process.
func asUser(t *testing.T, uid, gid uint32, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		var err error
		for _, call := range [][4]uintptr{
			{unix.SYS_SETGROUPS, 0, 0, 0},
			{unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)},
			{unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
		} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				err = errors.Join(err, fmt.Errorf("call %d: %w", call[0], errno))
			}
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	must(t, <-done)
}

// TestRootWithoutCapabilities checks the error for a root that may not change the owner of a folder, as in a container
// without capabilities. The folder's mode is not the cause.
func TestRootWithoutCapabilities(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return
	}
	dir := t.TempDir()
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, because the thread has lost its capabilities
		none := make([]unix.CapUserData, 2)
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			started <- err
			return
		}
		started <- (&Server{base: dir}).restrictTo(account{uid: mappedID, gid: mappedID, name: "nobody"})
	}()
	want := "this process is root but may not become user nobody (chown " + dir + ": operation not permitted), " +
		"and Postgres refuses to run as root: run as an ordinary user or set DATABASE_URL"
	if err := <-started; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func dialUnix(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, &unix.SockaddrUnix{Name: path})
}

// TestRootsServersAreRootsAlone checks that the servers' sockets and data are inaccessible to other programs of the
// user that root's servers run as. It covers a new folder, a folder of an older version, and a path that is too long
// for a socket.
func TestRootsServersAreRootsAlone(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	needRedis(t)
	if os.Geteuid() != 0 {
		return // the servers then run as the current user, in folders of mode 0700
	}
	for name, owner := range map[string]string{"new": "", "of nobody": "65534", "of no passwd entry": "42421"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := openTemp(t)
			if owner != "" {
				keepAsBefore(t, dir, owner)
			}
			keepOut(t, dir)
		})
	}
	t.Run("a link", func(t *testing.T) { // works as it did; the folder that it leads to is left as it is
		t.Parallel()
		dir, elsewhere := openTemp(t), openTemp(t)
		must(t, os.Symlink(elsewhere, filepath.Join(dir, "postgres")))
		startPostgres(t, Config{Dir: dir, Test: true})
		if info, err := os.Stat(elsewhere); err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("%v, %v", info, err)
		}
	})
	t.Run("long path", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openTemp(t), fmt.Sprintf("%0100d", 0))
		must(t, errors.Join(os.Mkdir(dir, 0o711), os.Chmod(dir, 0o711)))
		keepOut(t, dir)
	})
}

// keepAsBefore creates data folders as an older version did, which were accessible to other programs of the servers'
// user.
func keepAsBefore(t *testing.T, dir, owner string) {
	t.Helper()
	p := startPostgres(t, Config{Dir: dir, Test: true})
	exec1(t, p.URL(), "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)")
	stopPostgres(t, p)
	var uid int
	_, err := fmt.Sscan(owner, &uid)
	must(t, err)
	err = filepath.WalkDir(filepath.Join(dir, "postgres", "data"), func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, uid))
	})
	must(t, errors.Join(err, os.Lchown(filepath.Join(dir, "postgres"), 0, 0), os.Chmod(filepath.Join(dir, "postgres"), 0o711)))
}

func keepOut(t *testing.T, dir string) {
	t.Helper()
	_, hadData := os.Stat(filepath.Join(dir, "postgres", "data"))
	p := startPostgres(t, Config{Dir: dir, Test: true})
	if hadData == nil && query(t, p.URL(), "SELECT count(*)::text FROM kept") != "1" {
		t.Error("the data of the version before is not there")
	}
	server := startRedis(t, Config{Dir: dir, Mode: RedisServer})
	sockets := []string{filepath.Join(p.sockets, ".s.PGSQL.5432"), filepath.Join(server.sockets, redisSocket)}
	for _, socket := range sockets { // this process can connect to them
		if err := dialUnix(socket); err != nil {
			t.Fatalf("%s: %v", socket, err)
		}
	}
	other, err := pickAccount(int(p.acct.uid)) // with the groups of that user's programs
	must(t, err)
	for _, a := range []account{other, {uid: mappedID, gid: mappedID}, {uid: 1, gid: 1}} {
		asUser(t, a.uid, a.gid, func() {
			for _, socket := range sockets {
				if err := dialUnix(socket); !errors.Is(err, fs.ErrPermission) {
					t.Errorf("uid %d connects to %s: %v", a.uid, socket, err)
				}
			}
			for _, file := range []string{p.data + "/PG_VERSION", server.data} {
				fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if !errors.Is(err, fs.ErrPermission) {
					t.Errorf("uid %d opens %s: %v", a.uid, file, err)
					_ = unix.Close(fd)
				}
			}
		})
	}
}
