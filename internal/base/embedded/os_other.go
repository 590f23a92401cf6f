//go:build unix && !linux

package embedded

import "syscall"

// namespaces is false: only Linux has user namespaces.
const namespaces = false

// processAttr returns the attributes of a child that runs as the account in its own process group. These systems have
// no parent-death signal: the next start ends leftover servers (lockPart).
func (a account) processAttr(syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.isOtherUser() {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// memoryDir returns "": this system has no known folder in memory.
func memoryDir() string { return "" }

// describeFullDisk returns "": how much is free is not known here.
func describeFullDisk(string, uint64) string { return "" }
