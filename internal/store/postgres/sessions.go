package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// usualSessions is how many sessions a pool uses at a time, unless calls wait for longer than openAfter.
	usualSessions = 6
	// openAfter is how long a call waits for one of the usual sessions. It must be longer than these need to start.
	// If they wait for locks, it delays other calls.
	openAfter = 250 * time.Millisecond
)

// sessionGate lets a pool open more than usualSessions sessions only for calls that have waited for openAfter. A new
// session takes about 80 ms of Postgres' CPU time, because it starts a process, and plans each statement once. Without
// the gate, a burst of calls opens a session for each call, and these delay all calls for seconds on a small machine.
//
// The pool calls it as its tracer, around each use of a connection.
type sessionGate struct{ slots chan struct{} }

func newSessionGate() *sessionGate { return &sessionGate{make(chan struct{}, usualSessions)} }

// slotKey is the key of a call's slot, in the call's context and in the custom data of its connection.
type slotKey struct{}

const slotName = "slot"

// TraceAcquireStart waits for a slot, for openAfter at most.
func (g *sessionGate) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool,
	_ pgxpool.TraceAcquireStartData) context.Context {
	timer := time.NewTimer(openAfter)
	defer timer.Stop()
	select {
	case g.slots <- struct{}{}:
		return context.WithValue(ctx, slotKey{}, true)
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx
}

// TraceAcquireEnd notes the slot at the connection. If there is no connection, it returns the slot.
func (g *sessionGate) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	switch {
	case ctx.Value(slotKey{}) == nil:
	case data.Err != nil:
		<-g.slots
	default:
		data.Conn.PgConn().CustomData()[slotName] = true
	}
}

// TraceRelease returns the connection's slot.
func (g *sessionGate) TraceRelease(_ *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	noted := data.Conn.PgConn().CustomData()
	if noted[slotName] != nil {
		delete(noted, slotName)
		<-g.slots
	}
}

// TraceQueryStart does nothing. pgx requires it of each tracer.
func (*sessionGate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd does nothing. pgx requires it of each tracer.
func (*sessionGate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
