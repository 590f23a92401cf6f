package store

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// otherRegistry is a second contract of the chain.
var otherRegistry = common.HexToAddress("0xaaaa000000000000000000000000000000000001")

// ofOther returns a job of the second contract.
func ofOther(j job.Job) job.Job {
	j.ReputationRegistry = otherRegistry
	return j
}

// openReader opens a cursor of a contract, or of a backfill of both contracts.
func openReader(t *testing.T, s *Store, start uint64, end *uint64, contract common.Address) *chainReader {
	t.Helper()
	key := cursor.Key{ChainID: 8453, Contracts: strings.ToLower(contract.Hex())}
	if end != nil {
		key.Contracts, key.Backfill = strings.ToLower(otherRegistry.Hex()+","+reputation.Hex()), "backfill"
	}
	c, err := s.OpenCursor(t.Context(), key, start, end)
	heraldtest.Must(t, err)
	return &chainReader{T: t, s: s, c: c}
}

// TestContractsShareNothing: a reorg that the cursor of one contract sees does not touch the events of another one.
func TestContractsShareNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	one, two := openReader(t, s, 100, nil, reputation), openReader(t, s, 100, nil, otherRegistry)
	a, b := inBlock(feedback(1, 1), 101, 'a'), ofOther(inBlock(feedback(2, 1), 101, 'a'))
	one.read(100, 101, true, a)
	two.read(100, 101, true, b)
	one.loses(101, 102, a)
	if d := read(t, s, b.ID()); d.Status != outcome.Queued {
		t.Errorf("the other contract's delivery is %s", d.Status)
	}
	two.loses(101, 102, b)
}

// TestCursorsMoveTogether: cursors at the same height move in one transaction. If one of them has moved, none does, and
// nothing is accepted.
func TestCursorsMoveTogether(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	one, two := openReader(t, s, 100, nil, reputation), openReader(t, s, 100, nil, otherRegistry)
	both := []*cursor.Cursor{&one.c, &two.c}
	in := []ledger.Intake{{Job: inBlock(feedback(1, 1), 101, 'a')}, {Job: ofOther(inBlock(feedback(2, 1), 101, 'a'))}}
	if _, err := s.AdvanceCursors(t.Context(), both, Advance{From: 100, To: 101, Head: 101, AtHead: true, Intakes: in}); err != nil {
		t.Fatal(err)
	}
	if one.c.Next != 102 || two.c.Next != 102 || value[int](t, s, `SELECT count(*)::int FROM herald.chain_cursors WHERE next_block = 102`) != 2 {
		t.Errorf("%+v, %+v", one.c, two.c)
	}
	if n := value[int](t, s, `SELECT count(DISTINCT contract)::int FROM herald.chain_events`); n != 2 {
		t.Errorf("the events are remembered under %d contracts", n)
	}
	stale := two.c
	two.read(102, 102, true)
	_, err := s.AdvanceCursors(t.Context(), []*cursor.Cursor{&one.c, &stale}, Advance{From: 102, To: 102, Intakes: []ledger.Intake{{Job: feedback(3, 1)}}})
	if !errors.Is(err, cursor.ErrMoved) {
		t.Errorf("beside a cursor that has moved: %v", err)
	}
	heraldtest.Equal(t, "deliveries", value[int](t, s, `SELECT count(*)::int FROM herald.deliveries`), 2)
	if again, err := s.OpenCursor(t.Context(), one.c.Key, 1, nil); err != nil || again.Next != 102 {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestBackfillCursor: a backfill has one cursor until it has read its last block. The contract's cursor ends its events
// if a reorg removes them afterwards.
func TestBackfillCursor(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	end := uint64(110)
	backfill, follows := openReader(t, s, 90, &end, common.Address{}), openReader(t, s, 95, nil, reputation)
	follows.read(95, 96, true)
	stays, goes, other := inBlock(feedback(1, 1), 94, 'a'), inBlock(feedback(1, 2), 109, 'a'), ofOther(inBlock(feedback(2, 1), 109, 'a'))
	backfill.read(90, 100, false, stays)
	backfill.read(101, 110, true, goes, other)
	list, err := s.Cursors(t.Context(), 8453)
	if err != nil || len(list) != 1 || list[0].Key != follows.c.Key {
		t.Errorf("after the last block: %+v, %v", list, err)
	}
	follows.read(97, 111, true, goes)
	follows.loses(96, 112, goes)
	for _, j := range []job.Job{stays, other} {
		if d := read(t, s, j.ID()); d.Status != outcome.Queued {
			t.Errorf("%s is %s", d.Key, d.Status)
		}
	}
}

// TestBackfillYields: a backfill that sees a reorg ends events of blocks that no contract's cursor has read. It leaves
// the others to that cursor, and so it does with the blocks and transfers that are stored for them.
func TestBackfillYields(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	end := uint64(110)
	backfill, follows := openReader(t, s, 90, &end, common.Address{}), openReader(t, s, 95, nil, reputation)
	low, high := inBlock(feedback(1, 1), 92, 'a'), inBlock(feedback(1, 2), 96, 'a')
	backfill.read(90, 97, false, low, high)
	moved := inBlock(feedback(1, 2), 97, 'b')
	follows.read(95, 98, true, moved)
	backfill.read(96, 98, false, high) // on the branch that was replaced
	if n := value[int](t, s, `SELECT block_number::int FROM herald.chain_events WHERE delivery_id = $1 AND state = 'canonical'`, high.ID()); n != 97 {
		t.Errorf("the backfill moved the event to block %d", n)
	}
	backfill.loses(92, 110, low)
	if d := read(t, s, high.ID()); d.Status != outcome.Queued {
		t.Errorf("the event that the contract's cursor has read is %s", d.Status)
	}
	follows.loses(97, 99, high)
}

// TestLocksOfOneConnection: one connection holds all locks of a process. A lock that is held is refused, to this
// process too. If the connection is lost, the next attempt fails, and the one after it gets the locks.
func TestLocksOfOneConnection(t *testing.T) {
	t.Parallel()
	url := heraldtest.Postgres(t, postgres.Migrate)
	s := openStore(t, url)
	other, err := Open(postgres.Config{URL: secret.New(url), MaxConns: 2, Locks: s.Pool})
	heraldtest.Must(t, err)
	t.Cleanup(other.Close)
	keys := []cursor.Key{{ChainID: 1, Contracts: "0xa"}, {ChainID: 1, Contracts: "0xb"}, {ChainID: 1, Contracts: "0xc"}}
	const count = `SELECT format('%s locks, %s connections', count(*), count(DISTINCT pid)) FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	none := func(context.Context, []cursor.Key) error { return nil }
	_, err = s.LeadChain(t.Context(), keys[:2], func(ctx context.Context, led []cursor.Key) error {
		if len(led) != 2 {
			t.Errorf("leads %+v", led)
		}
		_, err := other.LeadChain(ctx, keys, func(ctx context.Context, led []cursor.Key) error {
			if len(led) != 1 || led[0] != keys[2] {
				t.Errorf("beside it leads %+v", led)
			}
			if got := value[string](t, s, count); got != "3 locks, 1 connections" {
				t.Error(got)
			}
			if leads, err := s.LeadChain(ctx, keys, none); leads || err != nil {
				t.Errorf("all are held: %v, %v", leads, err)
			}
			exec(t, s, `SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE locktype = 'advisory'
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
			if _, err := s.Lead(ctx, func(context.Context) error { return nil }); err == nil {
				t.Error("the lost connection gave a lock")
			}
			_, err := s.LeadChain(ctx, keys[:1], none) // the locks of the old connection are not released from the new one
			return err
		})
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if leads, err := s.LeadChain(t.Context(), keys, none); !leads || err != nil {
		t.Errorf("afterwards: %v, %v", leads, err)
	}
	if got := value[string](t, s, count); got != "0 locks, 0 connections" {
		t.Error(got)
	}
}
