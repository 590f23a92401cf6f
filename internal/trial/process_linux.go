package trial

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// children lists the processes whose parent is pid.
func children(pid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		child, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		if err != nil {
			continue // it ended just now
		}
		// "pid (name) state ppid …"; the name may hold anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(pid) {
			found = append(found, child)
		}
	}
	return found, nil
}

// ResidentBytes is how much memory the process holds now.
func (p *Process) ResidentBytes() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.PID()))
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm cannot be read", p.PID())
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// processorTime is what this machine's processors have done since it started: how long they were idle, and how long there were any.
func processorTime() (idle, all time.Duration, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	// "cpu user nice system idle iowait irq softirq steal guest guest_nice", in hundredths of a second; guests are in user and nice.
	line, _, _ := bytes.Cut(b, []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, 0, errors.New("/proc/stat cannot be read")
	}
	for i, f := range fields[1:9] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat cannot be read: %w", err)
		}
		all += time.Duration(n) * 10 * time.Millisecond
		if i == 3 || i == 4 {
			idle += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return idle, all, nil
}
