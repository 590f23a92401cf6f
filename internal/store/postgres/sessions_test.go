package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// TestSessionGate: a burst of calls uses the usual sessions. The pool opens further ones only if these stay in use, and
// each call returns its slot, also one that got no connection.
func TestSessionGate(t *testing.T) {
	t.Parallel()
	ctx := heraldtest.Within(t, 30*time.Second)
	var gate *sessionGate
	p, err := OpenAdjusted(Config{URL: secret.New(heraldtest.Postgres(t, Migrate)), MaxConns: 40}, func(pc *pgxpool.Config) {
		gate = pc.ConnConfig.Tracer.(*sessionGate)
	})
	heraldtest.Must(t, err)
	defer p.Close()
	open := func() (held []*pgxpool.Conn) {
		for range usualSessions {
			c, err := p.Conns.Acquire(ctx)
			heraldtest.Must(t, err)
			held = append(held, c)
		}
		return held
	}

	held := open()
	waiting := make(chan *pgxpool.Conn)
	for range 4 * usualSessions {
		go func() {
			c, _ := p.Conns.Acquire(ctx)
			waiting <- c
		}()
	}
	for _, c := range held {
		c.Release()
	}
	for range 4 * usualSessions {
		heraldtest.Receive(t, "a connection", waiting).Release()
	}
	if n := p.Conns.Stat().TotalConns(); n > 2*usualSessions { // a call may ask a moment before a session is idle
		t.Errorf("a burst of calls opened %d sessions", n)
	}

	held = open()
	late, err := p.Conns.Acquire(ctx) // the usual sessions may wait for locks
	heraldtest.Must(t, err)
	if n := p.Conns.Stat().TotalConns(); n <= usualSessions {
		t.Errorf("%d sessions, although one more call than usual has one", n)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := p.Conns.Acquire(ended); err == nil {
		t.Error("a call whose context has ended got a connection")
	}
	for _, c := range append(held, late) {
		c.Release()
	}
	if _, err := p.Conns.Acquire(ended); err == nil {
		t.Error("a call whose context has ended got a connection")
	}
	heraldtest.Equal(t, "slots in use", len(gate.slots), 0)
}
