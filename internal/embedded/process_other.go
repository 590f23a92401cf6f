//go:build unix && !linux

package embedded

import "syscall"

// namespaces: only Linux has user namespaces.
const namespaces = false

// attr describes a child of the account in its own process group. There is no parent-death signal here: the next start
// stops what was left (clearLeftover).
func (a account) processAttr(syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.isOtherUser() {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

func isZombie(int) bool { return false }
