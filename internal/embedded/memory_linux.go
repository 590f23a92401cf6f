package embedded

import "syscall"

const (
	sharedMemory = "/dev/shm"
	tmpfsMagic   = 0x01021994 // linux/magic.h
	// memoryRoom is what must be free there: each copy of a database is 8 MB, and several tests run at a time.
	memoryRoom = 2 << 30
)

// memoryDir is a folder in memory with room for test databases, "" when there is none. A database is 300 files, and
// ext4 looks long for an inode that was not freed in the last seconds: tests that make and drop databases spend half of
// their time there.
func memoryDir() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(sharedMemory, &fs); err != nil || fs.Type != tmpfsMagic ||
		fs.Bavail*uint64(fs.Bsize) < memoryRoom {
		return ""
	}
	return sharedMemory
}
