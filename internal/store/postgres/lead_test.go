package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestLeadership: leadership also ends when the leader's connection dies.
func TestLeadership(t *testing.T) {
	t.Parallel()
	p := openPool(t, heraldtest.EmptyPostgres(t))
	for range 2 {
		led, err := p.Lead(t.Context(), func(ctx context.Context) error {
			exec(t, p, `SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
			return nil
		})
		if !led || err != nil {
			t.Error(led, err)
		}
	}
	if n := p.PoolStat(); n.Max != 12 {
		t.Errorf("%+v", n)
	}
}

// TestFrozenLeader: if the leader is frozen, another process leads.
func TestFrozenLeader(t *testing.T) {
	t.Parallel()
	url := heraldtest.EmptyPostgres(t)
	one, two := openPool(t, url), openPool(t, url)
	leads := func(p *Pool, do func()) bool {
		led, err := p.Lead(t.Context(), func(context.Context) error { do(); return nil })
		heraldtest.Must(t, err)
		return led
	}
	one.leaders.maxIdle = 100 * time.Millisecond
	if !leads(one, func() {
		one.leaders.mu.Lock() // as if it was frozen: no statement runs
		defer one.leaders.mu.Unlock()
		heraldtest.Await(t, "the other one leads", func() bool { return leads(two, func() {}) })
	}) || !leads(one, func() {}) {
		t.Error("one of two processes does not lead")
	}
}

// TestLeaderIsNotIdle: the connection of a leader runs statements while the leader works.
func TestLeaderIsNotIdle(t *testing.T) {
	t.Parallel()
	p := openPool(t, heraldtest.EmptyPostgres(t))
	p.leaders.maxIdle = time.Second
	count := func() (n int) {
		heraldtest.Must(t, p.Conns.QueryRow(t.Context(), `SELECT count(*)
			FROM pg_stat_activity a JOIN pg_locks l USING (pid)
			WHERE l.locktype = 'advisory' AND a.datname = current_database() AND a.query = '-- ping'`).Scan(&n))
		return n
	}
	led, err := p.Lead(t.Context(), func(context.Context) error {
		heraldtest.Await(t, "the connection is used", func() bool { return count() == 1 })
		return nil
	})
	if !led || err != nil {
		t.Error(led, err)
	}
}
