//go:build !linux

package embedded

// memoryDir returns "": this system has no known folder in memory.
func memoryDir() string { return "" }
