//go:build chaos

package trial

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// processorTime returns the processors' idle and total time since the machine started.
func processorTime() (idle, all time.Duration, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	// "cpu user nice system idle iowait irq softirq steal guest guest_nice", in hundredths of a second. user and nice
	// include the guests.
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
