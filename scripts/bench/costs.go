//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/agentherald/herald/scripts/script"
)

// costs are the resources of Postgres and Redis that one delivery needs, without processor time.
type costs struct {
	intakeWAL float64 // bytes of write-ahead log for accepting it
	wal       float64 // bytes of write-ahead log for delivering it
	commits   float64
	disk      float64 // bytes of tables and indexes that remain
	commands  float64 // Redis commands, including those that its scripts run
	reads     float64 // reads of Redis's sockets: round trips, if nothing is pipelined
	network   float64 // bytes to and from Redis
	waiting   float64 // bytes of a task that waits in Redis; 0 if too few tasks waited
	finished  float64 // bytes that a finished task keeps in Redis for an hour; 0 if there were too few tasks
}

// fewestTasks is the minimum number of tasks for measuring the memory of one. With fewer, other memory dominates.
const fewestTasks = 3000

// counters are the counters of Postgres and Redis since they started.
type counters struct{ wal, commits, disk, commands, reads, network, memory float64 }

func (b *bench) readCounters(ctx context.Context) (c counters) {
	script.Check(b.site.SQL(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8,
			(SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())::float8,
			(SELECT sum(pg_total_relation_size(oid)) FROM pg_class
				WHERE relnamespace = 'herald'::regnamespace AND relkind = 'r')::float8`).Scan(&c.wal, &c.commits, &c.disk)
	}))
	script.Check(c.readRedis(script.Must(b.site.Redis.Client().InfoMap(ctx, "stats", "memory").Result())))
	return c
}

// readRedis reads the values in INFO. memory counts only data, without the buffers of clients and of the append-only
// file.
func (c *counters) readRedis(info map[string]map[string]string) error {
	var errs []error
	number := func(section, name string) float64 {
		value, err := strconv.ParseFloat(info[section][name], 64)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s in INFO: %w", name, err))
		}
		return value
	}
	c.commands = number("Stats", "total_commands_processed")
	c.reads = number("Stats", "total_reads_processed")
	c.network = number("Stats", "total_net_input_bytes") + number("Stats", "total_net_output_bytes")
	c.memory = number("Memory", "used_memory") - number("Memory", "mem_clients_normal") -
		number("Memory", "mem_aof_buffer")
	return errors.Join(errs...)
}

// costsOf computes the costs from counters that were read before n jobs were accepted, before they were delivered
// (with waiting tasks in Redis), and afterwards.
func costsOf(empty, accepted, delivered counters, n, waiting int) costs {
	each := func(before, after float64) float64 { return max(0, after-before) / float64(n) }
	c := costs{
		intakeWAL: each(empty.wal, accepted.wal),
		wal:       each(accepted.wal, delivered.wal),
		commits:   each(accepted.commits, delivered.commits),
		disk:      each(empty.disk, delivered.disk),
		commands:  each(accepted.commands, delivered.commands),
		reads:     each(accepted.reads, delivered.reads),
		network:   each(accepted.network, delivered.network),
	}
	if n >= fewestTasks {
		c.finished = each(empty.memory, delivered.memory)
	}
	if waiting >= fewestTasks {
		c.waiting = max(0, accepted.memory-empty.memory) / float64(waiting)
	}
	return c
}
