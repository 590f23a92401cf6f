//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/jackc/pgx/v5"
)

// standbyPort is part of the name of the standby's socket, which is in the folder of the primary's socket.
const standbyPort = "5433"

// withStandby calls do while Postgres has a standby that every commit waits for. It restarts the bench's cluster with
// replication settings, which the embedded server does not use, and creates the standby with pg_basebackup.
func (b *bench) withStandby(ctx context.Context, do func() error) (err error) {
	t, sockets, err := b.postgresTwin()
	if err != nil {
		return err
	}
	if err := b.site.Postgres.Stop(ctx); err != nil {
		return err
	}
	// Restart it after a failure as well, because the following rows need it.
	defer func() {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		err = errors.Join(err, b.site.Postgres.Start(back))
	}()
	replication := []string{"-c", "wal_level=replica", "-c", "max_wal_senders=4"}
	primary, err := b.start(t, "postgres", slices.Concat(t.args, replication,
		[]string{"-c", "synchronous_commit=on", "-c", "synchronous_standby_names=*"})...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(ctx, primary, syscall.SIGINT)) }()
	wait, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := b.awaitAnswer(wait, primary, "SELECT true"); err != nil {
		return err
	}

	data := filepath.Join(b.data, "standby")
	if err := t.folder(data); err != nil {
		return err
	}
	copying, err := b.start(t, "pg_basebackup", "--host="+sockets, "--port=5432", "--username=herald", "--no-password", "--pgdata="+data,
		"--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast")
	if err != nil {
		return err
	}
	if err := copying.Wait(wait); err != nil {
		return err
	}
	standby, err := b.start(t, "postgres", slices.Concat(t.args, replication, []string{"-D", data, "-c", "port=" + standbyPort})...)
	if err != nil {
		return err
	}
	b.standby = standby
	// The primary is stopped first: it waits until the standby has received everything.
	defer func() {
		b.standby = nil
		err = errors.Join(err, stop(ctx, primary, syscall.SIGINT), stop(ctx, standby, syscall.SIGINT))
	}()
	const streams = `SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')`
	if err := b.awaitAnswer(wait, standby, streams); err != nil {
		return err
	}
	return do()
}

// postgresTwin returns how the site's Postgres runs, and the folder of its socket.
func (b *bench) postgresTwin() (t twin, sockets string, err error) {
	pid, err := b.postgres.PID()
	if err != nil {
		return t, "", fmt.Errorf("find the postmaster: %w", err)
	}
	if t, err = twinOf(pid); err != nil {
		return t, "", err
	}
	u, err := url.Parse(b.database)
	if err != nil {
		return t, "", err
	}
	return t, u.Query().Get("host"), nil
}

// awaitAnswer waits until a query on the site's database returns true, while a server starts.
func (b *bench) awaitAnswer(ctx context.Context, p *trial.Process, query string) error {
	return p.Await(ctx, pollRows, query, func() (bool, error) {
		return trial.QueryOne(ctx, b.site, pgx.RowTo[bool], query)
	})
}
