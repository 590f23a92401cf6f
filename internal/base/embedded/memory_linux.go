package embedded

import "syscall"

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
