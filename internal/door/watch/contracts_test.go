package watch

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/cursor"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
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
	_, err := w.net.RequestValidation(w.Context(), w.net.Account(0), w.net.Account(3).Address, w.agent, "", hash)
	heraldtest.Must(w, err)
	_, err = w.net.RespondValidation(w.Context(), w.net.Account(3), hash, 90, "", common.Hash{}, "")
	heraldtest.Must(w, err)
}

// count returns the number of deliveries whose key contains a text.
func (w *world) count(status outcome.Status, text string) (n int) {
	w.Helper()
	list, err := records.New(w.store).Deliveries(w.Context(), records.Filter{Limit: 100})
	heraldtest.Must(w, err)
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
		heraldtest.Await(t, "it is accepted", func() bool { return first.count(ledger.Accepted) == n })
	}
	_ = first.stop()
	heraldtest.Exec(t, w.database, `UPDATE herald.deliveries SET status = 'delivered', called = true, finished_at = now() WHERE key LIKE '%/3#NewFeedback'`)
	w.reorg(2, false) // removes 2 and 3
	w.watch(nil)
	heraldtest.Await(t, "2 is cancelled and 3 is retracted", func() bool {
		return w.count(outcome.Cancelled, "/2#NewFeedback") == 1 && w.count("", "/3#Retraction@") == 1
	})
	heraldtest.Equal(t, "the first feedback is queued", w.count(outcome.Queued, "/1#NewFeedback"), 1)
}

// settling settles each block that a watcher has read, as if the blocks were an hour old.
type settling struct{ *store.Store }

func (s settling) AdvanceCursors(ctx context.Context, c []*cursor.Cursor, a store.Advance) (store.Advanced, error) {
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
	heraldtest.Await(t, "the first response is accepted", func() bool { return two.count(ledger.Accepted) == 1 })
	_ = two.stop()
	w.respond(2)
	w.give(1)
	heraldtest.Await(t, "the feedback is accepted", func() bool { return one.count(ledger.Accepted) == 1 })
	w.watch(func(c *Config) { c.From, c.Ledger = nil, settling{w.store} })
	w.respond(3)
	heraldtest.Await(t, "each response is accepted", func() bool { return w.count("", "#ValidationResponse") == 3 })
}

// behindHead is a store in which the cursor of the identity registry never reaches the head, as on a fast chain.
type behindHead struct{ *store.Store }

func (s behindHead) Cursors(ctx context.Context, chainID uint64) ([]cursor.State, error) {
	list, err := s.Store.Cursors(ctx, chainID)
	for i := range list {
		list[i].Next = max(list[i].Next, 2) - 2
	}
	return list, err
}

// TestReorgBehindTheHead: another process reads the identity registry of a fast chain, so the watcher of the other
// registry never reaches the head. After a reorg, it still ends the delivery whose event is gone.
func TestReorgBehindTheHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine := func() { _, err := w.net.Commit(); heraldtest.Must(t, err) }
	one := w.watch(without(false, true, true))
	heraldtest.Await(t, "one reads", func() bool { one.mu.Lock(); defer one.mu.Unlock(); return one.last > 0 })
	two := w.watch(func(c *Config) { without(false, false, true)(c); c.Ledger = behindHead{w.store} })
	w.give(1)
	heraldtest.Await(t, "the feedback is accepted", func() bool { mine(); return two.count(ledger.Accepted) == 1 })
	w.reorg(w.head()+1-w.jobs()[1].BlockNumber, false)
	heraldtest.Await(t, "the delivery is cancelled", func() bool {
		mine()
		return w.count(outcome.Cancelled, "/1#NewFeedback") == 1
	})
}

// TestTransferStaysRecorded: two watchers of different registries see the same reorg, one after the other. The transfer
// that the new branch contains stays recorded.
func TestTransferStaysRecorded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(1)
	_, err := w.net.Transfer(t.Context(), w.net.Account(0), w.net.Account(2).Address, w.agent)
	heraldtest.Must(t, err)
	one, two := w.watch(without(false, true, true)), w.watch(without(true, false, true))
	head := w.head()
	isReadTo := func(g *watcher, block uint64) func() bool {
		return func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.last >= block }
	}
	heraldtest.Await(t, "one has read the transfer", isReadTo(one, head))
	heraldtest.Await(t, "two has read the block", isReadTo(two, head))
	_ = two.stop()
	agent := erc8004.Agent{ChainID: w.net.ChainID(), Registry: strings.ToLower(w.net.Deployment().Identity.Hex()), ID: fmt.Sprint(w.agent)}
	transfers := func() int {
		list, err := records.New(w.store).Transfers(t.Context(), agent)
		heraldtest.Must(t, err)
		return len(list)
	}
	w.reorg(1, true)
	_, err = w.net.SetURI(t.Context(), w.net.Account(2), w.agent, "data:application/json,{}")
	heraldtest.Must(t, err)
	head = w.head()
	heraldtest.Await(t, "one has read the new branch", isReadTo(one, head))
	two = w.watch(without(true, false, true))
	heraldtest.Await(t, "two has read the new branch", isReadTo(two, head))
	heraldtest.Equal(t, "transfers are recorded", transfers(), 1)
}

// TestFromAppliesToNewContracts: --from is the first block of contracts that were never read. The others continue where
// they stopped.
func TestFromAppliesToNewContracts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(2)
	w.respond(1)
	first := w.watch(func(c *Config) { without(false, false, true)(c); c.From = nil })
	heraldtest.Await(t, "the head is read", func() bool { w.give(1); return first.count(ledger.Accepted) > 0 })
	_ = first.stop()
	w.give(1)
	w.watch(nil) // from block 0
	heraldtest.Await(t, "the old response and the new feedback are accepted", func() bool {
		return w.count("", "#ValidationResponse") == 1 && w.count("", "#NewFeedback") >= first.count(ledger.Accepted)+1
	})
	heraldtest.Equal(t, "feedback from before the first watch",
		w.count("", "/1#NewFeedback")+w.count("", "/2#NewFeedback"), 0)
}

// recordedLedger records the contracts of each commit, and counts how often it lists cursors.
type recordedLedger struct {
	*store.Store
	listed atomic.Int32

	mu      sync.Mutex
	commits [][]string
}

func (r *recordedLedger) AdvanceCursors(ctx context.Context, cursors []*cursor.Cursor, a store.Advance) (store.Advanced, error) {
	done, err := r.Store.AdvanceCursors(ctx, cursors, a)
	var contracts []string
	for _, c := range cursors {
		contracts = append(contracts, c.Contracts)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.commits = append(r.commits, contracts)
	return done, err
}

func (r *recordedLedger) Cursors(ctx context.Context, chainID uint64) ([]cursor.State, error) {
	r.listed.Add(1)
	return r.Store.Cursors(ctx, chainID)
}

// last returns the contracts of the newest commit.
func (r *recordedLedger) last() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.commits) == 0 {
		return nil
	}
	return r.commits[len(r.commits)-1]
}

// recordLogs returns a client of the world's node, and a function that returns the numbers of addresses in the
// eth_getLogs requests since its last call.
func (w *world) recordLogs() (*eventlog.Reader, func() []int) {
	w.Helper()
	var mu sync.Mutex
	var asked []int
	proxy := chaintest.Bend(w.T, w.net.URL(), func(q chaintest.Request, result json.RawMessage) json.RawMessage {
		var filter struct{ Address []common.Address }
		if q.Method == "eth_getLogs" && json.Unmarshal(q.Params[0], &filter) == nil {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, len(filter.Address))
		}
		return result
	})
	nodes, err := node.New(node.Config{ChainID: w.net.ChainID(), URLs: []secret.Secret{secret.New(proxy)}})
	heraldtest.Must(w, err)
	w.Cleanup(nodes.Close)
	return eventlog.New(nodes, true), func() []int {
		mu.Lock()
		defer mu.Unlock()
		got := asked
		asked = nil
		return got
	}
}

// TestContractsAtOneHeight: a contract that is added is read alone until it has caught up. Then one request reads all
// contracts, and one commit moves their cursors, in the order of their addresses.
func TestContractsAtOneHeight(t *testing.T) {
	t.Parallel()
	for name, from := range map[string]*uint64{"from the head": nil, "from block 0": new(uint64)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.watch(without(false, false, true))
			w.give(1)
			heraldtest.Await(t, "the feedback is accepted", func() bool { return first.count(ledger.Accepted) == 1 })
			_ = first.stop()
			w.respond(1)
			w.give(1) // reading from the head begins with this block, not with the response's
			client, asked := w.recordLogs()
			ledger := &recordedLedger{Store: w.store}
			w.watch(func(c *Config) { c.From, c.Ledger, c.Chain = from, ledger, client })
			all := w.net.Deployment().List()
			given := 2
			heraldtest.Await(t, "all contracts move together", func() bool {
				if w.count("", "#NewFeedback") == given {
					w.give(1)
					given++
				}
				return slices.Equal(ledger.last(), all)
			})
			asked()
			w.give(2)
			heraldtest.Await(t, "more feedback is accepted", func() bool { return w.count("", "#NewFeedback") == given+2 })
			if got := asked(); len(got) == 0 || slices.ContainsFunc(got, func(n int) bool { return n != len(all) }) {
				t.Errorf("addresses in the requests for logs: %v", got)
			}
			heraldtest.Equal(t, "old responses", w.count("", "#ValidationResponse"),
				map[bool]int{true: 0, false: 1}[from == nil])
		})
	}
}

// TestRemovedContract: a contract that is not listed any more is not read. When it is listed again, reading continues
// where it stopped, also with another --from.
func TestRemovedContract(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	validation := strings.ToLower(w.net.Deployment().Validation.Hex())
	next := func() uint64 {
		cursors, err := w.store.Cursors(t.Context(), w.net.ChainID())
		heraldtest.Must(t, err)
		i := slices.IndexFunc(cursors, func(c cursor.State) bool { return c.Contracts == validation })
		return cursors[i].Next
	}
	w.respond(1)
	first := w.watch(nil)
	heraldtest.Await(t, "the first response is accepted", func() bool { return w.count("", "#ValidationResponse") == 1 })
	_ = first.stop()
	stopped := next()
	second := w.watch(without(false, false, true))
	w.respond(2)
	w.give(1)
	heraldtest.Await(t, "the feedback is accepted", func() bool { return second.count(ledger.Accepted) == 1 })
	_ = second.stop()
	if n := next(); n != stopped || w.count("", "#ValidationResponse") != 1 {
		t.Errorf("the removed contract was read up to block %d, and before up to %d", n, stopped)
	}
	w.respond(3)
	for range 5 {
		w.give(1)
	}
	from := stopped + 7
	third := w.watch(func(c *Config) { c.From = &from })
	heraldtest.Await(t, "each response is accepted", func() bool { return w.count("", "#ValidationResponse") == 3 })
	heraldtest.Equal(t, "events were read twice", third.count(ledger.Known), 0)
}

// TestFeedbackWaitsForIdentity: while another process does not read the identity contract on, no other contract is read
// further. When it stops, this process reads the identity contract too.
func TestFeedbackWaitsForIdentity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	identity := cursor.Key{ChainID: w.net.ChainID(), Contracts: strings.ToLower(w.net.Deployment().Identity.Hex())}
	_, err := w.store.OpenCursor(t.Context(), identity, 3, nil)
	heraldtest.Must(t, err)
	other := storetest.Open(t, w.database, 2)
	ctx, stop := context.WithCancel(t.Context())
	leads, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = other.LeadChain(ctx, []cursor.Key{identity}, func(ctx context.Context, _ []cursor.Key) error {
			close(leads)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	t.Cleanup(func() { stop(); <-ended })
	<-leads
	ledger := &recordedLedger{Store: w.store}
	w.give(2)
	w.watch(func(c *Config) { c.Ledger = ledger })
	heraldtest.Await(t, "the limit is read again and again", func() bool { return ledger.listed.Load() > 20 })
	cursors, err := w.store.Cursors(t.Context(), w.net.ChainID())
	if err != nil || len(cursors) != 3 || slices.ContainsFunc(cursors, func(c cursor.State) bool { return c.Next > 3 }) || len(w.rows()) != 0 {
		t.Errorf("%+v, %v, %v", cursors, err, w.rows())
	}
	stop()
	heraldtest.Await(t, "the feedback is accepted", func() bool { return w.count("", "#NewFeedback") == 2 })
}

// TestEarlyEventsAreDropped: events of a contract's blocks before its first one are dropped when a group reads them,
// because another contract of the group began earlier.
func TestEarlyEventsAreDropped(t *testing.T) {
	t.Parallel()
	a, b := common.Address{1}, common.Address{2}
	name := func(a common.Address) cursor.Key { return cursor.Key{Contracts: strings.ToLower(a.Hex())} }
	g := &group{cursors: []*cursor.Cursor{{Key: name(a), Start: 5}, {Key: name(b), Start: 9}}}
	event := func(of common.Address, block uint64) eventlog.Entry {
		return eventlog.Entry{Log: types.Log{Address: of, BlockNumber: block}}
	}
	left := g.dropEarly([]eventlog.Entry{event(b, 4), event(a, 5), event(b, 8), event(b, 9)})
	heraldtest.Equal(t, "the events", left, []eventlog.Entry{event(a, 5), event(b, 9)})
}

// TestMergedChecks: a block counts as checked if it is checked for each contract of a group.
func TestMergedChecks(t *testing.T) {
	t.Parallel()
	old, young := &follower.Omission{Block: 1, At: time.Unix(1, 0)}, &follower.Omission{Block: 2, At: time.Unix(2, 0)}
	a := &follower.Checks{Complete: 90, Unchecked: 3, Share: 0.5, Omission: young, Recheck: &[2]uint64{4, 8}}
	b := &follower.Checks{Complete: 70, Unchecked: 9, Share: 0.9, Omission: old, Recheck: &[2]uint64{2, 6}}
	want := &follower.Checks{Complete: 70, Unchecked: 9, Share: 0.5, Omission: young, Recheck: &[2]uint64{2, 8}}
	heraldtest.Equal(t, "of two", mergeChecks(a, b), want)
	heraldtest.Equal(t, "of two, the other way round", mergeChecks(b, a), want)
	heraldtest.Equal(t, "with none", mergeChecks(nil, a), a)
	heraldtest.Equal(t, "and none", mergeChecks(b, nil), b)
	heraldtest.Equal(t, "the checks of no contract", mergeChecks(nil, nil), nil)
}
