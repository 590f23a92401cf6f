//go:build !linux

package trial

import (
	"errors"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func awaitExit(int) bool { return false }

var errLinuxOnly = errors.New("trial: this needs Linux' /proc")

func children(int) ([]int, error) { return nil, errLinuxOnly }

// ResidentBytes is how much memory the process holds now.
func (p *Process) ResidentBytes() (int64, error) { return 0, errLinuxOnly }

// PeakResidentBytes is the most memory that the process has held so far.
func (p *Process) PeakResidentBytes() (int64, error) { return 0, errLinuxOnly }
