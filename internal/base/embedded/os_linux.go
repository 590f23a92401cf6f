package embedded

import (
	"fmt"
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

// endLeftover sends nothing: the kernel has sent the signal (processAttr). The process id may be that of another
// process, because the server may run in another container that shares the folder.
func endLeftover(int, string, syscall.Signal) {}

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
