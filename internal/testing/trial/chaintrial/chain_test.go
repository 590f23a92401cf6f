//go:build chain

package chaintrial

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5"

	"github.com/agentherald/herald/internal/testing/trial"
)

// These are the flags of `make chain`, which passes them as ARGS. The defaults make the short run.
var (
	seedFlag      = flag.Uint64("seed", 0, "what decides everything; 0: another one each time")
	blocksFlag    = flag.Int("blocks", 500, "blocks to mine on each chain")
	eventsFlag    = flag.Int("events", 10, "events in a block, on average")
	reorgsFlag    = flag.Int("reorgs", 50, "reorgs")
	killsFlag     = flag.Int("kills", 8, "kills -9 of a follower")
	faultsFlag    = flag.String("faults", "all", "what the node does, of "+fmt.Sprint(Faults)+", with commas; none")
	nodesFlag     = flag.Int("nodes", 1, "how many liars stand before the chain, each with lies of its own")
	paceFlag      = flag.Duration("pace", 80*time.Millisecond, "the pause between blocks")
	withinFlag    = flag.Duration("within", 20*time.Minute, "how long one chain may take")
	settleFlag    = flag.Duration("settle", 90*time.Second, "how long they may take to the head of a chain that rests")
	confirmedFlag = flag.Uint64("confirmations", 3, "HERALD_CONFIRMATIONS of the worker")
	logsFlag      = flag.String("logs", "", "the folder for what the programs say; empty: one that goes with the test")
)

const (
	finality = 64 // blocks below the head, more than any reorg replaces
	pollRows = time.Second
	// fiveASecond is the block time of the test of a fast chain.
	fiveASecond = 200 * time.Millisecond
	mostShown   = 10 // number of differences shown
	// beforeCall is the longest time between the worker's check of the event and the call.
	beforeCall = 5 * time.Second
)

// shared are the programs, of HERALD_TRIAL_SOURCE or of the tree that this test is part of, and a Postgres.
var shared trial.Bench

// followers are two `enqueue watch` processes of one chain. From time to time one of them is killed and started again.
type followers struct {
	site   *trial.Site
	env    []string
	args   []string
	random *rand.Rand
	two    [2]*trial.Process
	kills  int
	// mayEnd: a follower whose node serves another chain at its start may report that and exit. A supervisor would
	// restart it.
	mayEnd bool
	ends   int
}

func (f *followers) start(i int) (err error) {
	f.two[i], err = f.site.StartEnqueue(fmt.Sprintf("watch-%c", 'a'+i), f.env, f.args...)
	return err
}

// kill kills one of the two and starts it again.
func (f *followers) kill() error {
	i := f.random.IntN(len(f.two))
	f.kills++
	if err := f.two[i].Kill(); err != nil {
		return err
	}
	return f.start(i)
}

// check restarts followers that have exited where mayEnd allows that. Otherwise an exit is an error, because no fault
// of the node may end a follower.
func (f *followers) check() error {
	for i, p := range f.two {
		select {
		case <-p.Done():
		default:
			continue
		}
		if !f.mayEnd {
			log, _ := os.ReadFile(p.Log()) // if the log is unreadable, the error is reported without it
			return fmt.Errorf("%s has ended by itself; it said:\n%s", p.Name(), log[max(0, len(log)-2000):])
		}
		f.ends++
		if err := f.start(i); err != nil {
			return err
		}
	}
	return nil
}

// TestChain is `make chain`. At the end Postgres must agree with the final chain, in spite of killed processes and
// false answers.
func TestChain(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64N(1_000_000_000)
	}
	faults := Faults
	if *faultsFlag != "all" {
		faults = nil
		for name := range strings.SplitSeq(*faultsFlag, ",") {
			if name != "none" {
				faults = append(faults, Fault(name))
			}
		}
	}
	shared.Programs(t) // may compile them, so this comes before the time limit
	pace := *paceFlag
	run := func(ctx context.Context, t *testing.T, node Node) {
		name := filepath.Base(t.Name())
		began := time.Now()
		fmt.Printf("chain: %s: seed=%d\n", name, seed)
		t.Cleanup(func() {
			if t.Failed() {
				t.Errorf("ARGS='-seed %d' repeats the run (with the other flags as they were)", seed)
			}
		})
		agents, err := trial.StartAgents(1)
		heraldtest.Must(t, err)
		t.Cleanup(agents.Close)
		agents.OfferAll()
		w := newWorld(ctx, t, node, seed, registration(agents.URL(0)))
		var liars []*Proxy
		var addresses []string
		for i := range *nodesFlag + 1 { // the last one is for the worker
			liar := NewProxy(node.URL(), seed+uint64(i), finality, faults...)
			server := httptest.NewServer(liar)
			t.Cleanup(server.Close)
			liars, addresses = append(liars, liar), append(addresses, server.URL)
		}

		logs := *logsFlag
		if logs == "" {
			logs = t.TempDir()
		}
		site := shared.Open(ctx, t, trial.Config{Database: "chain_" + name, Logs: filepath.Join(logs, name)})
		two := &followers{site: site, random: rand.New(rand.NewPCG(seed, 5)),
			mayEnd: slices.Contains(faults, OtherChain),
			env:    environment(w, strings.Join(addresses[:*nodesFlag], ",")),
			args:   []string{"watch", fmt.Sprint(ChainID), "--from", fmt.Sprint(w.first), "--poll", "200ms"}}
		for i := range two.two {
			heraldtest.Must(t, two.start(i))
		}

		// A random URI that begins with { is itself a file, whose hash does not match. This trial does not test file
		// hashes.
		worker, err := site.Worker(trial.WorkerConfig{Name: "worker", Env: append(
			environment(w, addresses[*nodesFlag]), "HERALD_VERIFY_EVENT=receipt", "HERALD_HASH_POLICY=annotate",
			"HERALD_CONFIRMATIONS="+fmt.Sprint(*confirmedFlag), "HERALD_RETRY_SCHEDULE=1s,1s,1s,2s,2s,2s,4s,4s,4s,4s,4s,4s")})
		if err == nil {
			err = worker.Ready(ctx)
		}
		heraldtest.Must(t, err)
		heraldtest.Must(t, play(ctx, w, two, seed, pace))
		for _, liar := range liars {
			liar.Repent()
		}
		// These blocks confirm the last events, and make the disappearance of removed ones final.
		for mined := 0; mined < mostDepth+int(*confirmedFlag) || !w.isHighest(); mined++ {
			w.mine(0)
		}
		wanted := w.want(w.read(w.first, w.head()), countedNone)
		found, rows, err := awaitRows(ctx, two, wanted, w.gone)
		heraldtest.Must(t, err)
		calls, err := agents.Calls()
		heraldtest.Must(t, err)
		unfounded := w.history(wanted).JudgeCalls(calls, rows, *confirmedFlag, beforeCall)
		believed := FindBelieved(wanted, calls, rows)
		fmt.Println(trial.NewFigures("chain", name).Add("seed", seed).
			Add("blocks", w.blocks).Add("events", w.events).
			Add("reorgs", w.reorgs).Add("deepest", w.deepest).
			Add("kills", two.kills).Add("ends", two.ends).Add("lies", total(liars)).
			Add("accepted", found.Accepted).Add("rejected", found.Rejected).
			Add("cancelled", found.Cancelled).Add("retracted", found.Retracted).
			Add("missing", len(found.Missing)).Add("toomany", len(found.TooMany)).
			Add("misplaced", len(found.Misplaced)).Add("wrong", len(found.Wrong)).
			Add("calls", len(calls)).Add("unfounded", len(unfounded)).Add("believed", len(believed)).Add("ended", countEnds(rows)).Add("took", time.Since(began)))
		for i, difference := range slices.Concat(found.Faults(), unfounded, believed) {
			if i == mostShown {
				break
			}
			t.Errorf("%s", difference)
		}
		two.mayEnd = false // from here on an exit is an error
		if err := two.check(); err != nil {
			t.Error(err)
		}
	}
	onEachChain(t, *withinFlag, run)
	pace = fiveASecond // its blocks share timestamps, like those of Base
	onAnvil(t, "anvil_200ms", *withinFlag, run)
}

// environment returns the variables with the proxy and the registries for the followers.
func environment(w *world, url string) []string {
	id := fmt.Sprint(ChainID)
	return []string{"RPC_URL_" + id + "=" + url, "IDENTITY_REGISTRY_" + id + "=" + w.deployment.Identity.Hex(),
		"REPUTATION_REGISTRY_" + id + "=" + w.deployment.Reputation.Hex(),
		"VALIDATION_REGISTRY_" + id + "=" + w.deployment.Validation.Hex()}
}

// play makes the chain's history, and kills followers in between.
func play(ctx context.Context, w *world, two *followers, seed uint64, every time.Duration) error {
	random := rand.New(rand.NewPCG(seed, 6))
	reorgs, kills := choose(random, *blocksFlag, *reorgsFlag), choose(random, *blocksFlag, *killsFlag)
	pace := time.NewTicker(every)
	defer pace.Stop()
	for n := range *blocksFlag {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-pace.C:
		}
		w.mine(*eventsFlag)
		if err := two.check(); err != nil {
			return err
		}
		if reorgs[n] {
			w.reorg()
		}
		if kills[n] {
			if err := two.kill(); err != nil {
				return err
			}
		}
	}
	return nil
}

// choose returns some random block numbers.
func choose(random *rand.Rand, blocks, some int) map[int]bool {
	chosen := map[int]bool{}
	for _, n := range random.Perm(blocks)[:min(some, blocks)] {
		chosen[n] = true
	}
	return chosen
}

// registration returns the tokenURI of an agent with that MCP server.
func registration(url string) string {
	return fmt.Sprintf(`data:application/json,{"name":"agent","services":[{"name":"MCP","endpoint":%q,`+
		`"version":"2025-11-25"}]}`, url)
}

// countEnds returns the number of deliveries by final status. Retractions are counted separately.
func countEnds(rows []Row) string {
	ends := map[string]int{}
	for _, r := range rows {
		what := r.Status
		if strings.Contains(r.Key, "#Retraction@") {
			what = "retraction-" + what
		}
		ends[what]++
	}
	var texts []string
	for _, what := range slices.Sorted(maps.Keys(ends)) {
		texts = append(texts, fmt.Sprintf("%s:%d", what, ends[what]))
	}
	return strings.Join(texts, ",")
}

// awaitRows compares until there is no difference and every delivery has ended, or until settleFlag has passed.
func awaitRows(ctx context.Context, two *followers, wanted []Wanted, gone map[string]bool) (found Findings, rows []Row, err error) {
	wait, cancel := context.WithTimeoutCause(ctx, *settleFlag, fmt.Errorf("not within %s", *settleFlag))
	defer cancel()
	settled := trial.Until(wait, pollRows, "the rows to be those of the chain", func() (bool, error) {
		rows, err = readRows(ctx, two.site)
		if err = errors.Join(err, two.check()); err != nil {
			return false, err
		}
		found = Compare(wanted, gone, rows)
		return len(found.Faults()) == 0 && !slices.ContainsFunc(rows, Row.isOpen), nil
	})
	if settled != nil && len(found.Faults()) == 0 && !slices.ContainsFunc(rows, Row.isOpen) {
		return found, rows, settled
	}
	for _, r := range rows {
		if r.isOpen() {
			found.Wrong = append(found.Wrong, fmt.Sprintf("%s: %s is still %s %s: %s", r.Key, r.ID, r.Status, r.Reason,
				r.Error))
		}
	}
	return found, rows, nil // the caller reports the differences
}

// isOpen reports whether the delivery has not ended.
func (r Row) isOpen() bool { return !trial.Row{Status: r.Status}.Final() }

// readRows reads all deliveries.
func readRows(ctx context.Context, site *trial.Site) ([]Row, error) {
	scan := func(row pgx.CollectableRow) (r Row, err error) {
		var text *string
		err = row.Scan(&r.ID, &r.Key, &r.Status, &r.Reason, &r.Error, &r.OrderSeq, &text, &r.Called)
		if err != nil || text == nil {
			return r, err
		}
		return r, json.Unmarshal([]byte(*text), &r.Job)
	}
	return trial.Query(ctx, site, scan, `SELECT d.id::text, d.key, d.status, coalesce(d.reason, ''),
			coalesce(d.error, ''), d.order_seq::bigint, d.job::text, d.called OR EXISTS (
				SELECT FROM herald.attempts a WHERE a.delivery_id = d.id AND a.stage IN ('call', 'record'))
		FROM herald.deliveries d`)
}

// total returns the number of requests that got a false answer.
func total(liars []*Proxy) (n int) {
	for _, liar := range liars {
		for _, k := range liar.Counts() {
			n += k
		}
	}
	return n
}
