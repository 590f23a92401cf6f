//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/agentherald/herald/scripts/machine"
	"github.com/jackc/pgx/v5"
)

// environment describes the machine and the services, on which the numbers depend.
type environment struct {
	machine.Machine
	memory   int64  // bytes
	postgres string // version and the settings that matter most
	redis    string
}

func (b *bench) readEnvironment(ctx context.Context) (m environment, err error) {
	m.Machine = machine.Read(ctx)
	total, err := machine.ReadField("/proc/meminfo", "MemTotal")
	if err != nil {
		return m, err
	}
	kib, err := strconv.ParseInt(strings.TrimSuffix(total, " kB"), 10, 64)
	if err != nil {
		return m, fmt.Errorf("/proc/meminfo: %w", err)
	}
	m.memory = kib << 10
	err = b.site.SQL(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var version, fsync, commits, buffers string
		err := c.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'), current_setting('shared_buffers')`).
			Scan(&version, &fsync, &commits, &buffers)
		m.postgres = fmt.Sprintf("%s (fsync %s, synchronous_commit %s, shared_buffers %s)", version, fsync, commits, buffers)
		return err
	})
	if err != nil {
		return m, err
	}
	info, err := b.site.Redis.Client().Info(ctx, "server", "persistence").Result()
	if err != nil {
		return m, err
	}
	aof := "no append-only file"
	if infoField(info, "aof_enabled") == "1" {
		aof = "append-only file, flushed every second"
	}
	m.redis = infoField(info, "redis_version") + " (" + aof + ")"
	return m, nil
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
