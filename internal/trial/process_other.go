//go:build !linux

package trial

import (
	"errors"
	"syscall"
	"time"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

var errLinuxOnly = errors.New("trial: this needs Linux' /proc")

func children(int) ([]int, error) { return nil, errLinuxOnly }

// ResidentBytes is how much memory the process holds now.
func (p *Process) ResidentBytes() (int64, error) { return 0, errLinuxOnly }

func processorTime() (idle, all time.Duration, err error) { return 0, 0, errLinuxOnly }
