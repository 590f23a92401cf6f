package embedded

import (
	"bytes"
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
)

// namespaces reports whether a server can run as a uid without a passwd entry.
const namespaces = true

// processAttr returns the attributes of a child that runs as the account in its own process group. The kernel sends
// onDeath to the child when its parent's thread ends. Changing credentials clears that signal, and Go sets it
// afterwards.
func (a account) processAttr(onDeath syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: onDeath}
	switch {
	case a.mapped:
		attr.Cloneflags = syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: mappedID, HostID: int(a.uid), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: mappedID, HostID: int(a.gid), Size: 1}}
		if a.isOtherUser() {
			attr.GidMappingsEnableSetgroups = true // drops root's supplementary groups
			attr.Credential = &syscall.Credential{Uid: mappedID, Gid: mappedID}
		}
	case a.isOtherUser():
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// workingIn returns the live processes of the program whose working folder is dir. Postgres and all its backends work
// in their data folder. So this finds every process that a killed parent left, even if the postmaster itself is gone.
func workingIn(dir, program string) ([]int, error) {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if err != nil || cwd != real {
			continue
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || strings.TrimSuffix(filepath.Base(exe), " (deleted)") != program || isZombie(pid) {
			continue
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// isZombie reports whether the process has ended and only waits for its parent.
func isZombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The format is "pid (name) state …"; the name may contain anything, even a closing parenthesis.
	i := bytes.LastIndexByte(b, ')')
	return i >= 0 && i+2 < len(b) && (b[i+2] == 'Z' || b[i+2] == 'X')
}

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

// describeFullDisk returns that a folder's disk has less free space than least, in bytes, or "" if it has enough.
func describeFullDisk(dir string, least uint64) string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) >= least {
		return ""
	}
	return fmt.Sprintf("the disk of %s has only %d KiB left: free some space", dir, fs.Bavail*uint64(fs.Bsize)>>10)
}

const (
	sharedMemory = "/dev/shm"
	tmpfsMagic   = 0x01021994 // linux/magic.h
	// memoryRoom is the space that must be free: a copy of a database has 8 MB, and several tests run at a time.
	memoryRoom = 2 << 30
)

// memoryDir returns a folder in memory with space for test databases; "" if memory is short. A database has 300 files,
// and ext4 avoids inodes that were freed in the last seconds. Tests that create and drop databases would spend half of
// their time searching for inodes.
func memoryDir() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(sharedMemory, &fs); err != nil || fs.Type != tmpfsMagic ||
		fs.Bavail*uint64(fs.Bsize) < memoryRoom {
		return ""
	}
	return sharedMemory
}
