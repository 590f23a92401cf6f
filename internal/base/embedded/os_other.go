//go:build unix && !linux

package embedded

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// namespaces is false: only Linux has user namespaces.
const namespaces = false

// processAttr returns the attributes of a child that runs as the account in its own process group. These systems have
// no parent-death signal: the next start ends leftover servers (endLeftover).
func (a account) processAttr(syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.isOtherUser() {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// endLeftover sends the signal to a process that a killed process left, if its arguments name the folder base. Those of
// Postgres name its data, and the title of Redis names its socket.
func endLeftover(pid int, base string, ask syscall.Signal) {
	args, err := exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	if err == nil && pid > 1 && strings.Contains(string(args), base+"/") {
		_ = syscall.Kill(pid, ask)
	}
}

// memoryDir returns "": this system has no known folder in memory.
func memoryDir() string { return "" }

// describeFullDisk returns "": how much is free is not known here.
func describeFullDisk(string, uint64) string { return "" }
