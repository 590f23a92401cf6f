package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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
