package watch

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// without returns a change of a watcher's configuration that removes registries from the deployment.
func without(identity, reputation, validation bool) func(*Config) {
	return func(c *Config) {
		for registry, gone := range map[*common.Address]bool{&c.Deployment.Identity: identity,
			&c.Deployment.Reputation: reputation, &c.Deployment.Validation: validation} {
			if gone {
				*registry = common.Address{}
			}
		}
	}
}

// respond submits a validation request and its response, in a block each.
func (w *world) respond(request byte) {
	w.Helper()
	hash := common.Hash{request}
	if _, err := w.net.RequestValidation(w.Context(), w.net.Account(0), w.net.Account(3).Address, w.agent, "", hash); err != nil {
		w.Fatal(err)
	}
	if _, err := w.net.RespondValidation(w.Context(), w.net.Account(3), hash, 90, "", common.Hash{}, ""); err != nil {
		w.Fatal(err)
	}
}

// exec runs a statement in the world's database.
func (w *world) exec(sql string, args ...any) {
	w.Helper()
	conn, err := pgx.Connect(w.Context(), w.database)
	if err != nil {
		w.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(w.Context())) }()
	if _, err := conn.Exec(w.Context(), sql, args...); err != nil {
		w.Fatal(err)
	}
}

// count returns the number of deliveries whose key contains a text.
func (w *world) count(status store.Status, text string) (n int) {
	w.Helper()
	list, err := w.store.Deliveries(w.Context(), store.Filter{Limit: 100})
	if err != nil {
		w.Fatal(err)
	}
	for _, d := range list {
		if (status == "" || d.Status == status) && strings.Contains(d.Key, text) {
			n++
		}
	}
	return n
}

// TestReorgWhileRegistryIsAdded: while no watcher runs, a registry is added and a reorg removes events. The next watcher
// cancels and retracts their deliveries as it would without the new registry.
func TestReorgWhileRegistryIsAdded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.watch(without(false, false, true))
	for n := 1; n <= 3; n++ {
		w.give(1)
		heraldtest.Await(t, "it is accepted", func() bool { return first.count(store.Accepted) == n })
	}
	_ = first.stop()
	w.exec(`UPDATE herald.deliveries SET status = 'delivered', called = true, finished_at = now() WHERE key LIKE '%/3#NewFeedback'`)
	w.reorg(2, false) // removes 2 and 3
	w.watch(nil)
	heraldtest.Await(t, "2 is cancelled and 3 is retracted", func() bool {
		return w.count(store.Cancelled, "/2#NewFeedback") == 1 && w.count("", "/3#Retraction@") == 1
	})
	if w.count(store.Queued, "/1#NewFeedback") != 1 {
		t.Errorf("%v", w.rows())
	}
}

// settling settles each block that a watcher has read, as if the blocks were an hour old.
type settling struct{ *store.Store }

func (s settling) AdvanceCursors(ctx context.Context, c []*store.Cursor, a store.Advance) (store.Advanced, error) {
	a.Settled = a.To
	return s.Store.AdvanceCursors(ctx, c, a)
}

// TestTwoListsOfRegistries: one of two watchers stops and continues with one registry more, which the other one also
// reads. Each event is read.
func TestTwoListsOfRegistries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.watch(func(c *Config) { without(false, false, true)(c); c.Ledger = settling{w.store} })
	two := w.watch(func(c *Config) { without(false, true, false)(c); c.Ledger = settling{w.store} })
	w.respond(1)
	heraldtest.Await(t, "the first response is accepted", func() bool { return two.count(store.Accepted) == 1 })
	_ = two.stop()
	w.respond(2)
	w.give(1)
	heraldtest.Await(t, "the feedback is accepted", func() bool { return one.count(store.Accepted) == 1 })
	w.watch(func(c *Config) { c.From, c.Ledger = nil, settling{w.store} })
	w.respond(3)
	heraldtest.Await(t, "each response is accepted", func() bool { return w.count("", "#ValidationResponse") == 3 })
}

// TestTransferStaysRecorded: two watchers of different registries see the same reorg, one after the other. The transfer
// that the new branch contains stays recorded.
func TestTransferStaysRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(1)
	if _, err := w.net.Transfer(t.Context(), w.net.Account(0), w.net.Account(2).Address, w.agent); err != nil {
		t.Fatal(err)
	}
	one, two := w.watch(without(false, true, true)), w.watch(without(true, false, true))
	head, err := w.client.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	isReadTo := func(g *watcher, block uint64) func() bool {
		return func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.last >= block }
	}
	heraldtest.Await(t, "one has read the transfer", isReadTo(one, head))
	heraldtest.Await(t, "two has read the block", isReadTo(two, head))
	_ = two.stop()
	agent := store.Agent{ChainID: w.net.ChainID(), Registry: strings.ToLower(w.net.Deployment().Identity.Hex()), ID: fmt.Sprint(w.agent)}
	transfers := func() int {
		list, err := w.store.Transfers(t.Context(), agent)
		if err != nil {
			t.Error(err)
		}
		return len(list)
	}
	w.reorg(1, true)
	if _, err := w.net.SetURI(t.Context(), w.net.Account(2), w.agent, "data:application/json,{}"); err != nil {
		t.Fatal(err)
	}
	if head, err = w.client.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	heraldtest.Await(t, "one has read the new branch", isReadTo(one, head))
	two = w.watch(without(true, false, true))
	heraldtest.Await(t, "two has read the new branch", isReadTo(two, head))
	if n := transfers(); n != 1 {
		t.Errorf("%d transfers are recorded", n)
	}
}

// TestFromAppliesToNewContracts: --from is the first block of contracts that were never read. The others continue where
// they stopped.
func TestFromAppliesToNewContracts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(2)
	w.respond(1)
	first := w.watch(func(c *Config) { without(false, false, true)(c); c.From = nil })
	heraldtest.Await(t, "the head is read", func() bool { w.give(1); return first.count(store.Accepted) > 0 })
	_ = first.stop()
	w.give(1)
	w.watch(nil) // from block 0
	heraldtest.Await(t, "the old response and the new feedback are accepted", func() bool {
		return w.count("", "#ValidationResponse") == 1 && w.count("", "#NewFeedback") >= first.count(store.Accepted)+1
	})
	if w.count("", "/1#NewFeedback")+w.count("", "/2#NewFeedback") != 0 {
		t.Error("feedback from before the first watch is accepted")
	}
}
