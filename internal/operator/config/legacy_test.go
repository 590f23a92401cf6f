package config

import (
	"strings"
	"testing"
)

func TestLegacyQueueSetting(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		env  []string
		want string // part of the expected error; empty: no error
	}{
		"not set":      {nil, ""},
		"the old name": {[]string{"HERALD_LEGACY_QUEUE=action_jobs"}, ""},
		"all taken":    {[]string{"HERALD_LEGACY_QUEUE=action_jobs", "HERALD_REDIS_INTAKE=on"}, ""},
		"none taken":   {[]string{"HERALD_LEGACY_QUEUE=action_jobs", "HERALD_REDIS_INTAKE=off"}, "HERALD_LEGACY_QUEUE: is set although HERALD_REDIS_INTAKE is off"},
		"a hash tag":   {[]string{"HERALD_LEGACY_QUEUE={a}b"}, "HERALD_LEGACY_QUEUE: must be the name of a list"},
		"asynq's":      {[]string{"HERALD_LEGACY_QUEUE=asynq:queues"}, "must not begin with asynq:"},
		"our own":      {[]string{"HERALD_LEGACY_QUEUE=herald:marker"}, "must not begin with asynq: or herald:"},
		"too long":     {[]string{"HERALD_LEGACY_QUEUE=" + strings.Repeat("x", 129)}, "1 to 128"},
	} {
		cfg, err := Load(c.env)
		if c.want == "" && (err != nil || cfg.LegacyQueue == "" && c.env != nil) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
