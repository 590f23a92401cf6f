//go:build chaos && !linux

package trial

import "time"

func processorTime() (idle, all time.Duration, err error) { return 0, 0, errLinuxOnly }
