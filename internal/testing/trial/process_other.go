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

// ResidentBytes returns how much memory the process uses now.
func (p *Process) ResidentBytes() (int64, error) { return 0, errLinuxOnly }

// PeakResidentBytes returns the most memory that the process has used so far.
func (p *Process) PeakResidentBytes() (int64, error) { return 0, errLinuxOnly }
