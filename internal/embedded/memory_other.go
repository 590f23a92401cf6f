//go:build !linux

package embedded

// memoryDir is a folder in memory with room for test databases; none is known here.
func memoryDir() string { return "" }
