package store

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/coalescer"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// holdGroups delays a store's groups before Postgres receives them, or their results afterwards, until release is
// called.
func holdGroups(s *Store, before bool) (begun <-chan int, release func()) {
	began, gate := make(chan int, 100), make(chan struct{})
	flush := s.claims.Flush
	s.claims.Flush = func(ctx context.Context, group []claimRequest) ([]coalescer.Result[*ledger.Claim], error) {
		if before {
			began <- len(group)
			<-gate
		}
		results, err := flush(ctx, group)
		if !before {
			began <- len(group)
			<-gate
		}
		return results, err
	}
	return began, sync.OnceFunc(func() { close(gate) })
}

// askFor claims deliveries, each in a goroutine of its own.
func askFor(ctx context.Context, s *Store, ids ...uuid.UUID) (claims []*ledger.Claim, errs []error, wait func()) {
	claims, errs = make([]*ledger.Claim, len(ids)), make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() { claims[i], errs[i] = s.Claim(ctx, id, 1, lease) })
	}
	return claims, errs, all.Wait
}

// TestClaimOfACancelledCaller: a caller that gives up while its claim is under way gets the claim, whether or not
// Postgres had received it. A claim that was still queued is never made.
func TestClaimOfACancelledCaller(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"before Postgres has it": true, "after it is committed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			s.claims.Min, s.claims.Flights, s.claims.Stall, s.claims.Timeout = 1, 1, time.Minute, time.Minute
			ids := insertDispatched(t, s, 4)
			begun, release := holdGroups(s, before)
			defer release()
			ctx, giveUp := context.WithCancel(t.Context())
			claims, errs, wait := askFor(ctx, s, ids[0])
			heraldtest.Receive(t, "a group is under way", begun)
			waiting, waitErrs, waited := askFor(ctx, s, ids[1], ids[2])
			heraldtest.Await(t, "two wait", func() bool { return s.claims.Queued() == 2 })

			giveUp()
			waited()
			for i := range waiting {
				if waiting[i] != nil || !errors.Is(waitErrs[i], context.Canceled) {
					t.Errorf("who waited was given %+v, %v", waiting[i], waitErrs[i])
				}
			}
			release()
			wait()
			if claims[0] == nil || errs[0] != nil {
				t.Fatalf("the claim under way: %+v, %v", claims[0], errs[0])
			}
			if d := read(t, s, ids[0]); d.Status != outcome.Running || d.Attempts != 1 {
				t.Errorf("%+v", d)
			}
			record(t, s, claims[0], delivered) // the claim is valid
			for _, id := range ids[1:3] {
				if d := read(t, s, id); d.Status != outcome.Queued || d.Attempts != 0 {
					t.Errorf("%+v", d)
				}
			}
		})
	}
}

// TestCloseWaitsForClaims: Close waits until pending claims have their results, before it closes the connections.
func TestCloseWaitsForClaims(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.claims.Min, s.claims.Flights = 1, 1
	ids := insertDispatched(t, s, 3)
	begun, release := holdGroups(s, true)
	defer release()
	claims, errs, wait := askFor(t.Context(), s, ids[0])
	heraldtest.Receive(t, "a group is under way", begun)
	more, moreErrs, moreWait := askFor(t.Context(), s, ids[1:]...)
	heraldtest.Await(t, "two wait", func() bool { return s.claims.Queued() == 2 })
	closed := make(chan struct{})
	go func() { defer close(closed); s.Close() }()
	release()
	wait()
	moreWait()
	heraldtest.Receive(t, "the store is closed", closed)
	for i, c := range append(claims, more...) {
		if err := append(errs, moreErrs...)[i]; c == nil || err != nil {
			t.Errorf("claim %d: %+v, %v", i, c, err)
		}
	}
}

// stallingConn is a connection whose peer seems to be gone: either its writes or the answers to them are lost.
type stallingConn struct {
	net.Conn
	lost *atomic.Pointer[stall]
	mine atomic.Pointer[stall]
}

// stall is the failure of the next connection that writes.
type stall struct {
	answers bool // the answers are lost, not the writes
	conn    net.Conn
}

func (c *stallingConn) Write(b []byte) (int, error) {
	if s := c.lost.Load(); s != nil && c.mine.Load() == nil && c.lost.CompareAndSwap(s, nil) {
		s.conn = c.Conn
		c.mine.Store(s)
	}
	if s := c.mine.Load(); s != nil && !s.answers {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *stallingConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if s := c.mine.Load(); err != nil || s == nil || !s.answers {
			return n, err
		}
	}
}

// TestClaimsBesideAStalledConnection: a stalled connection delays only its own group, whose members are then claimed
// alone. If Postgres had committed the group, these claims are refused, and the deliveries return when their leases
// expire.
func TestClaimsBesideAStalledConnection(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]bool{"nothing arrives": false, "no answer arrives": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lost atomic.Pointer[stall]
			first := newStore(t)
			s := openAdjusted(t, first.Conns.Config().ConnString(), 12, func(pc *pgxpool.Config) {
				dial := pc.ConnConfig.DialFunc
				pc.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := dial(ctx, network, address)
					return &stallingConn{Conn: conn, lost: &lost}, err
				}
			})
			s.claims.Min, s.claims.Stall, s.claims.Timeout = 1, 200*time.Millisecond, 4*time.Second
			ids := insertDispatched(t, first, 30)
			if c, err := s.Claim(t.Context(), ids[0], 1, lease); c == nil || err != nil { // connects and prepares
				t.Fatal(c, err)
			}

			stallsOn := s.claims.Flush
			var stalled atomic.Int32
			broken := &stall{answers: answers}
			s.claims.Flush = func(ctx context.Context, group []claimRequest) ([]coalescer.Result[*ledger.Claim], error) {
				if group[0].id == ids[1] {
					lost.Store(broken)
					stalled.Add(int32(len(group)))
				}
				return stallsOn(ctx, group)
			}
			claims, errs, wait := askFor(t.Context(), s, ids[1])
			heraldtest.Await(t, "the connection stalls", func() bool { return stalled.Load() == 1 && lost.Load() == nil })
			began := time.Now()
			others, otherErrs, othersWait := askFor(t.Context(), s, ids[2:]...)
			othersWait()
			t.Logf("the others took %s", time.Since(began))
			for i, c := range others {
				if c == nil || otherErrs[i] != nil {
					t.Errorf("beside a stall: %+v, %v", c, otherErrs[i])
				}
			}
			wait()
			if errs[0] != nil || (claims[0] == nil) != answers {
				t.Errorf("the stalled claim: %+v, %v", claims[0], errs[0])
			}
			_ = broken.conn.Close() // otherwise pgx would wait for it in the background
			if s.claims.Stats().Failed != 1 {
				t.Errorf("%+v", s.claims.Stats())
			}

			if answers { // no worker has the claim, so its lease must expire
				exec(t, first, `UPDATE herald.deliveries SET lease_until = now() - interval '1 second' WHERE id = $1`, ids[1])
				if n, _, err := first.ExpireLeases(t.Context(), 10, 11); n != 1 || err != nil {
					t.Errorf("%d leases ran out, %v", n, err)
				}
			}
			if d := read(t, first, ids[1]); d.Attempts != 1 {
				t.Errorf("%+v", d)
			}
		})
	}
}
